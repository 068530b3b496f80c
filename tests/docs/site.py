"""The built documentation: its pages, their links and anchors, and a server on loopback for the browser."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> None:
    """Build the site as `make docs` does; a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    command += ["--config-file", str(ROOT / "site" / "mkdocs.yml"), "--site-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    links: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what this element refers to."""
        given = dict(attrs)
        for name in ("id", "name"):
            if given.get(name) and tag != "meta":
                self.anchors.add(str(given[name]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.sources.append(str(given["src"]))
        if tag == "link" and given.get("href") and given.get("rel") != "canonical":
            self.sources.append(str(given["href"]))


@functools.cache
def read(path: Path) -> Page:
    """A page of the built site."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(folder: Path) -> Iterator[str]:
    """Links, sources and anchors inside the site that lead nowhere, and sources that lie outside."""
    for path in sorted(folder.rglob("*.html")):
        page, base = read(path), path.relative_to(folder).as_posix()
        for link in [*page.links, *page.sources]:
            target, anchor = urldefrag(urljoin(f"http://site/{base}", link))
            if not target.startswith("http://site/"):
                if link in page.sources:
                    yield f"{base}: loads {link}"
                continue
            found = folder / unquote(target.removeprefix("http://site/").partition("?")[0])
            found = found / "index.html" if found.is_dir() else found
            if not found.is_file():
                yield f"{base}: {link}"
            elif anchor and found.suffix == ".html" and unquote(anchor) not in read(found).anchors:
                yield f"{base}: {link} (no such anchor)"


class Quiet(SimpleHTTPRequestHandler):
    """A file server that says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Every request is one that the test makes."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
