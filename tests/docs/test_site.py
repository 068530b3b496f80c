"""The documentation in a real browser: nothing fails, nothing is loaded from elsewhere, everything can be
read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.docs.site import broken, build, served

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("site"), pytest.mark.timeout(1800)]

READY = "document.readyState === 'complete' && !!document.querySelector('article, .md-content')"
LUMINANCE = """
(() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map(Number);
    return 0.3 * r + 0.6 * g + 0.1 * b;
  };
  const article = getComputedStyle(document.querySelector('article')).color;
  return [light(getComputedStyle(document.body).backgroundColor), light(article)];
})()
"""
DIAGRAMS = """
[...document.querySelectorAll('.diagram')].map((each) => {
  const box = each.querySelector('svg').getBoundingClientRect();
  return box.width > 100 && box.height > 20 && getComputedStyle(each).overflowX === 'auto';
})
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield url


def paths(site: Path) -> list[str]:
    """Every page, but for the one that tells of a missing page: its links are absolute."""
    found = (path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html")))
    return [path for path in found if path != "404.html"]


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    assert not list(broken(site))


def test_pages_open_without_errors_and_load_nothing_from_elsewhere(site: Path, address: str) -> None:
    drawn = 0
    with Browser() as browser:
        for path in paths(site):
            browser.open(f"{address}/{path}")
            browser.until(READY)
            background, text = browser.evaluate(LUMINANCE)
            assert background > text + 80, f"{path}: {text} on {background}"
            shown = browser.evaluate(DIAGRAMS)
            assert all(shown), path
            drawn += len(shown)
            assert not browser.problems, f"{path}: {browser.problems}"
        elsewhere = [url for url in browser.requests if not url.startswith((address, "data:", "blob:"))]
    assert not elsewhere
    assert drawn >= 26, "every frame, machine and exchange has a drawing"


def test_pages_can_be_read_on_a_phone_in_the_dark(site: Path, address: str) -> None:
    cut = 0
    with Browser(dark=True) as browser:
        browser.call(
            "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True
        )
        for path in paths(site):
            browser.open(f"{address}/{path}")
            browser.until(READY)
            width = browser.evaluate("document.documentElement.scrollWidth")
            assert width <= 400, f"{path} is {width} pixels wide"
            marked = browser.evaluate(CUT)
            assert all(marked), f"{path}: a drawing ends at the edge without a sign that it goes on"
            cut += len(marked)
            background, text = browser.evaluate(LUMINANCE)
            assert background < text - 80, f"{path}: {text} on {background}"
    assert cut >= 10, "most drawings are wider than a phone"


CUT = """
[...document.querySelectorAll('.diagram')].filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => getComputedStyle(each).maskImage !== 'none')
"""


COPIED = """
[...document.querySelectorAll('.highlight code')].filter((each) => each.querySelector('.gp')).map((each) => {
  each.setAttribute('data-md-copying', '');  // as the copy button does before it reads the text
  const text = each.innerText;
  each.removeAttribute('data-md-copying');
  return text;
})
"""


def test_what_the_copy_button_takes_can_be_typed(address: str) -> None:
    with Browser() as browser:
        browser.open(f"{address}/start/machines.html")
        browser.until(READY)
        copied = browser.evaluate(COPIED)
    assert len(copied) >= 5
    lines = [line for text in copied for line in text.splitlines()]
    assert not [line for line in lines if line.startswith("$")]
    assert any(line.startswith("yeto-syncer ") and line.endswith("\\") for line in lines)


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("FINAL_MANIFEST", "protocol/frames/final_manifest.html"),
        ("overlapping chunk", "protocol/errors.html#ChunkOverlap"),
        ("cannot open the event tape", "errors.html#start-cannot-open-the-event-tape"),
    ],
)
@pytest.mark.parametrize("way", ["server", "disk"])
def test_search_finds_frames_and_errors(site: Path, address: str, words: str, target: str, way: str) -> None:
    if way == "disk":  # as `make docs` says to open it
        address = site.as_uri()
    with Browser() as browser:
        browser.open(f"{address}/index.html")
        browser.until(READY)
        browser.evaluate("document.querySelector('.md-search__input').focus()")
        browser.call("Input.insertText", text=words)
        found = browser.until(
            "[...document.querySelectorAll('.md-search-result__link')]"
            ".map((each) => each.href.replace(/[?]h=[^#]*/, ''))"
            f".find((each) => each.endsWith({f'/{target}'!r}))"
        )
        assert found == f"{address}/{target}"
        assert not browser.problems
