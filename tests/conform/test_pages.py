"""The page for newcomers, tried as they would: its adapter and its sut file are taken from the text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from yeto_proto.conform import answers, cli, sut, trace
from yeto_proto.conform.verdict import Verdict

PAGES = Path(__file__).parents[2] / "site" / "docs" / "conformance"


def blocks(page: str, language: str) -> list[str]:
    """The code of this language on a page."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf'```{language}(?: title="[^"]+")?\n(.*?)```', text, re.S)


@pytest.fixture
def newcomer(tmp_path):
    """A folder with what the page tells to write in the first twelve minutes."""
    (code,) = blocks("thirty-minutes.md", "python")
    (tmp_path / "adapter.py").write_text(code)
    first = blocks("thirty-minutes.md", "yaml")[0]
    (tmp_path / "sut.yaml").write_text(first)
    return tmp_path / "sut.yaml"


def test_the_first_adapter(newcomer, capsys):
    assert cli.main(["run", "--sut", str(newcomer), "--role", "codec", "heartbeat.*", "--strict"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    passed, _, _, _, skipped, _ = last.replace(",", "").split()
    assert int(passed) >= 5
    assert int(skipped) >= 1


def test_every_operation_and_verdict_is_documented():
    text = (PAGES / "formats.md").read_text(encoding="utf-8")
    assert [op for op in answers.OPS if f"`{op}`" not in text] == []
    overview = (PAGES / "index.md").read_text(encoding="utf-8")
    assert [each.value for each in Verdict if f"| {each.value} |" not in overview] == []
    verbs = {step["do"] for each in trace.load_corpus() for step in each.steps}
    assert [verb for verb in verbs if f"`{verb}`" not in text] == []


def test_the_settings_of_the_page_are_those_of_our_own_file():
    known = sut.read(sut.OURS).roles["server"]["settings"]
    text = (PAGES / "thirty-minutes.md").read_text(encoding="utf-8")
    start = text.index("Nearly every case sets")
    named = re.findall(r"`([a-z_]+)`", text[start : text.index("give an empty list", start)])
    assert len(named) >= 8
    assert [each for each in named if each not in known] == []
