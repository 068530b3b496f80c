"""Every command and every Python block of the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import DOCS, ROOT, SITE, PageRun, loose_commands, name_of, pages, runnable
from tests.e2e.processes import Processes

PAGES = [page for page in pages() if runnable(page)]
TESTS = Path(__file__).parents[1]


@pytest.mark.full
@pytest.mark.timeout(1800)  # some pages train for minutes on a busy machine
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, processes: Processes) -> None:
    PageRun(page, tmp_path, processes).follow()


def test_at_most_one_block_in_ten_is_not_run() -> None:
    found = [block for page in pages() for block in runnable(page)]
    skipped = [block for block in found if block.why is not None]
    told = "\n".join(f"{name_of(each.page)}:{each.line}: {each.why}" for each in skipped)
    assert len(skipped) * 10 <= len(found), told
    assert not [each for each in skipped if each.page in start_pages()], told


def start_pages() -> list[Path]:
    """The README, and what stands under "Start here" in the navigation."""
    settings = yaml.safe_load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    [entries] = [part["Start here"] for part in settings["nav"] if "Start here" in part]
    found = [DOCS / path for entry in entries for path in entry.values()]
    assert all(path.is_file() for path in found)
    return [ROOT / "README.md", *found]


def test_every_program_that_is_shown_has_a_test() -> None:
    shown = {Path(block.program).name for page in pages() for block in runnable(page) if block.program}
    assert len(shown) >= 10
    tests = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert not [name for name in sorted(shown) if not re.search(rf"\b{Path(name).stem}\b", tests)]


def test_every_program_that_is_shown_is_linked_for_who_reads_in_the_checkout() -> None:
    """There only the line that includes it is to be seen."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for program in (SITE / block.program for block in runnable(page) if block.program):
            link = program.relative_to(page.parent).as_posix()
            assert program.is_file() and f"[`{program.relative_to(ROOT).as_posix()}`]({link})" in text, (
                program
            )


def test_contributing_names_every_folder_of_tests() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| `tests/` \| `([^`]+)` \|", text, re.M)
    assert set(row.split()) == {path.parent.name for path in TESTS.glob("*/*.py")}


def test_commands_stand_in_console_blocks() -> None:
    assert not [line for page in pages() for line in loose_commands(page)]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "spec/README.md"])
def test_files_that_are_linked_from_outside_the_site_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    gone = [link for link in links if not (ROOT / name).parent.joinpath(link.partition("#")[0]).exists()]
    assert not gone
