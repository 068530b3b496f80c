"""Several implementations in one report."""

from __future__ import annotations

import json
import re
import sys
from xml.etree import ElementTree

import pytest

from yeto_proto.conform import cli, trace

ADAPTERS = {
    "refuser": "{'id': json.loads(line)['id'], 'ok': False, 'error': 'BadCounter'}",
    "unable": "{'id': json.loads(line)['id'], 'unsupported': True}",
}


@pytest.fixture
def suts(tmp_path):
    """A sut file for each of two adapters."""
    paths = []
    for name, answer in ADAPTERS.items():
        script = json.dumps(
            f"import sys, json\nfor line in sys.stdin:\n    print(json.dumps({answer}), flush=True)"
        )
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(f"name: {name}\ncodec: {{command: ['{sys.executable}', -c, {script}]}}\n")
    return paths


def arguments(suts, *more):
    return ["run", *(part for path in suts for part in ("--sut", str(path))), "pull_req.*", *more]


def row(index, name):
    """The cells of an implementation in the table of areas."""
    (found,) = re.findall(f"<tr><th>{name}</th>(<td.*?)</tr>", index)
    return found


def test_each_has_its_own_rows(suts, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(arguments(suts, "--output", str(out))) == cli.FAILED
    printed = capsys.readouterr().out
    assert "refuser: codec" in printed and "unable: codec" in printed
    assert "fail refuser: codec/pull-smallest" in printed
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    worst = {(line["implementation"], line["case"]): line["worst"] for line in lines}
    assert worst["refuser", "pull-smallest"] == "fail"
    assert worst["refuser", "pull-attempt-0"] == "pass"
    assert worst["unable", "pull-attempt-0"] == "skip"
    suites = [each.get("name") for each in ElementTree.parse(out / "junit.xml").getroot()]
    assert suites == ["refuser: codec", "unable: codec"]
    index = (out / "index.html").read_text()
    count = sum(name == "unable" for name, _ in worst)
    assert row(index, "unable").endswith(f'<td class="n skip">0 of {count}</td>')
    passed = sum(each in ("pass", "loose") for (name, _), each in worst.items() if name == "refuser")
    assert row(index, "refuser").endswith(f'<td class="n fail">{passed} of {count}</td>')
    assert row(index, "refuser").count("<td") == row(index, "unable").count("<td") > 2
    page = (out / "cases" / "codec-pull-smallest.html").read_text()
    assert "refuser, recorded" in page and "unable, recorded" in page


def test_the_tally_has_all_of_them(suts, capsys):
    assert cli.main(arguments(suts[1:])) == cli.NOTHING_SELECTED
    alone = capsys.readouterr().out.splitlines()[-1]
    cli.main(arguments(suts))
    both = capsys.readouterr().out.splitlines()[-1]
    assert alone.split()[-2] == both.split()[-2] != "0"
    assert both.split()[2] != "0"


def test_two_of_one_name_are_refused(suts, capsys):
    assert cli.main(arguments([suts[0], suts[0]])) == cli.BAD_ARGUMENTS
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: two of them have one name; --sut")


ONE_BY_ONE = """
import sys, json
for line in sys.stdin:
    request = json.loads(line)
    answer = {"ok": False, "error": "BadMagic"}
    if len(request.get("pieces", ())) > 1:
        answer = {"ok": True, "messages": json.loads(sys.argv[1])}
    print(json.dumps({"id": request["id"], **answer}), flush=True)
"""


def test_a_known_failure_of_one_cut_stays_on_the_list(tmp_path, capsys):
    """The adapter takes the pieces of the case one by one, and not together."""
    case = next(each for each in trace.load_corpus() if each.id == "chunks-in-order")
    command = [sys.executable, "-c", ONE_BY_ONE, json.dumps(case.steps[0]["answer"]["messages"])]
    path, out = tmp_path / "sut.yaml", tmp_path / "out"
    known = [{"case": "chunks-*", "why": "not written yet"}]
    path.write_text(json.dumps({"name": "x", "codec": {"command": command}, "known-failures": known}))
    arguments = ["run", "--sut", str(path), "chunks-in-order", "--output", str(out)]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "0 passed, 0 failed, 1 skipped" and "take it off" not in printed
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {line["cut"]: line["worst"] for line in lines} == {"coalesced": "fail", "recorded": "pass"}
    assert {line["counts_as"] for line in lines} == {"skipped"}
    assert not list(ElementTree.parse(out / "junit.xml").getroot().iter("failure"))
    assert cli.main([*arguments, "--cuts", "recorded"]) == cli.FAILED
    assert "take it off the list" in capsys.readouterr().out
