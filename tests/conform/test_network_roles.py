"""Our own syncer and learner under test: a few cases of each area here, all of them in `make test-full`."""

from __future__ import annotations

import pytest

from tests.conform.runs import TRACES
from yeto_proto.conform import runner, sut
from yeto_proto.conform.names import CUTS
from yeto_proto.conform.verdict import Verdict

NETWORK = [each for each in TRACES if each.role in ("server", "client")]
QUICK = {
    "run-two-steps", "round-duplicate", "rebind-after-disconnect", "final-two-learners", "resume-continues",
    "resume-v1", "budget-two-learners", "mac-right", "init-over-data-streams", "learner-run-two-steps",
    "learner-second-attempt", "learner-shutdown-before-the-ack", "learner-redials",
    "order-shutdown-after-the-last-ack", "learner-order-ack-after-the-cut", "bound-soft-deadline",
    "carry-once",
}  # fmt: skip


def marked(cases):
    return [
        pytest.param(each, id=each.id, marks=[pytest.mark.rule(rule) for rule in each.rules])
        for each in cases
    ]


def verdicts(cases, **options):
    """Id, cut and reason of every case that did not pass."""
    results = runner.run(cases, sut.read(sut.OURS), runner.Options(timeout=120.0, **options))
    return [(each.trace.id, each.cut, each.reason) for each in results if each.worst is not Verdict.PASS]


@pytest.mark.parametrize("case", marked(each for each in NETWORK if each.id in QUICK))
def test_case(case):
    assert verdicts([case]) == []


def test_cases_that_share_a_syncer():
    """Handshakes and strays, one byte a write."""
    shared = [each for each in NETWORK if each.head.get("share")]
    assert len(shared) > 60
    assert verdicts(shared, cuts=("bytes",), jobs=2) == []


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cut", CUTS)
def test_every_case_with_every_cut(cut):
    assert verdicts(NETWORK, cuts=(cut,), jobs=4) == []


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_false_alarm_in_many_runs():
    """Twenty runs of a case of each kind and of everything that shares a syncer, five of what is about order
    and time: such a case waits to see that nothing comes.
    """
    again = [each for each in NETWORK if each.id in QUICK or each.head.get("share")]
    timed = [each for each in NETWORK if declares(each)]
    assert len(again) > 80 and len(timed) > 20
    for turn in range(20):
        cases = {each.id: each for each in (again if turn % 4 else again + timed)}
        assert verdicts(cases.values(), jobs=4) == []


def declares(case):
    """Whether a case says `after` or `within`."""
    return any(key in step for step in case.steps for key in ("after", "within"))
