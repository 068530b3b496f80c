"""The codec role: our own codec in this process and behind the adapter, and adapters that misbehave."""

from __future__ import annotations

import sys

import pytest

from tests.conform.runs import TRACES as CORPUS
from yeto_proto.conform import codec_role, runner, sut, trace
from yeto_proto.conform.processes import NotStartedError
from yeto_proto.conform.verdict import Result, Verdict

TRACES = [each for each in CORPUS if each.role == "codec"]
CASES = [
    pytest.param(each, id=each.id, marks=[pytest.mark.rule(rule) for rule in each.rules]) for each in TRACES
]


@pytest.mark.parametrize("case", CASES)
def test_case(case):
    result = Result(case)
    codec_role.run(case, codec_role.InProcess(), result)
    assert result.verdict is Verdict.PASS, result.reason


STREAMS = [each for each in TRACES if each.steps[0]["request"]["op"] == "stream"]


@pytest.mark.parametrize("how", ["coalesced", "bytes"])
def test_any_cut_of_a_stream_gives_the_same_answers(how):
    assert len(STREAMS) > 80
    for case in STREAMS:
        result = Result(case, cut=how)
        codec_role.run(case, codec_role.InProcess(), result)
        assert result.verdict is Verdict.PASS, (case.id, result.reason)


def test_cuts():
    pieces = [(0, b"ab"), (0, b"c"), (1, b"d"), (0, b"e")]
    assert codec_role.cut(pieces, "recorded") == pieces
    assert codec_role.cut(pieces, "coalesced") == [(0, b"abc"), (1, b"d"), (0, b"e")]
    assert codec_role.cut(pieces, "bytes") == [(0, b"a"), (0, b"b"), (0, b"c"), (1, b"d"), (0, b"e")]
    assert codec_role.cut([(0, bytes(5000))], "bytes") == [(0, bytes(5000))]


def adapter(script: str) -> sut.Sut:
    return sut.Sut("scripted", trace.CORPUS, {"codec": {"command": [sys.executable, "-c", script]}})


def run(script: str, *ids: str, timeout: float = 300.0) -> list[Result]:
    wanted = [each for each in TRACES if each.id in (ids or ("pull-smallest",))]
    return runner.run(wanted, adapter(script), runner.Options(timeout=timeout))


ECHO = "import sys, json\nfor line in sys.stdin:\n    request = json.loads(line)\n    {}"


def test_the_adapter_process_gives_the_same_answers():
    results = runner.run(TRACES, sut.read(sut.OURS), runner.Options())
    assert [each.trace.id for each in results if each.worst is not Verdict.PASS] == []


def test_exit_127_skips_the_case_and_the_next_one_starts_again():
    results = run(ECHO.format("sys.exit(127)"), "pull-smallest", "ack")
    assert [each.verdict for each in results] == [Verdict.SKIP, Verdict.SKIP]


@pytest.mark.parametrize(
    ("reply", "verdict", "says"),
    [
        ("print('{', flush=True)", Verdict.FAIL, "not JSON"),
        ("print('[]', flush=True)", Verdict.FAIL, "another id"),
        ("print(json.dumps({'id': 0, 'ok': True}), flush=True)", Verdict.FAIL, "another id"),
        (
            "print(json.dumps({'id': request['id'], 'unsupported': True}), flush=True)",
            Verdict.SKIP,
            "not support",
        ),
        ("print('[' * 100000, flush=True)", Verdict.FAIL, "not JSON"),
        ("print('9' * 5000, flush=True)", Verdict.FAIL, "not JSON"),
        (
            "print(json.dumps({'id': request['id'], 'ok': False, 'error': 'BadFragment'}), flush=True)",
            Verdict.FAIL,
            "refused what must be accepted",
        ),
        (
            "print(json.dumps({'id': request['id'], 'ok': True, 'fields': {}}), flush=True)",
            Verdict.FAIL,
            "fragment_id: is missing",
        ),
    ],
)
def test_answers_that_are_wrong(reply, verdict, says):
    (result,) = run(ECHO.format(reply))
    assert result.verdict is verdict
    assert says in result.reason


@pytest.mark.parametrize(
    ("error", "rule", "verdict"),
    [
        ("BadCounter", "pull_req.round_attempt.must", Verdict.PASS),
        ("BadCounter", None, Verdict.PASS),
        ("BadFragment", "pull_req.fragment_id.must", Verdict.LOOSE),
        ("BadCounter", "push_fragment.c_steps.must", Verdict.LOOSE),
    ],
)
def test_another_refusal_is_loose(error, rule, verdict):
    answer = f"{{'id': request['id'], 'ok': False, 'error': {error!r}, 'rule': {rule!r}}}"
    (result,) = run(ECHO.format(f"print(json.dumps({answer}), flush=True)"), "pull-attempt-0")
    assert result.verdict is verdict


def test_accepting_what_must_be_refused_fails():
    answer = "print(json.dumps({'id': request['id'], 'ok': True, 'fields': {}}), flush=True)"
    (result,) = run(ECHO.format(answer), "pull-attempt-0")
    assert result.verdict is Verdict.FAIL
    assert "accepted what must be refused as BadCounter" in result.reason


def test_an_adapter_that_says_nothing_is_not_the_peers_fault():
    (result,) = run("import sys; sys.stdin.read()", timeout=0.5)
    assert result.verdict is Verdict.BROKEN


def test_an_adapter_that_cannot_be_started():
    chosen = sut.Sut("none", trace.CORPUS, {"codec": {"command": ["/nowhere/adapter"]}})
    with pytest.raises(NotStartedError, match="No such file"):
        runner.check_start(chosen, "codec", TRACES, runner.Options())
    with pytest.raises(NotStartedError, match="first question"):
        runner.check_start(adapter("raise SystemExit(3)"), "codec", TRACES, runner.Options())
