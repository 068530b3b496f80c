"""Rules of the connection group and of the coordinator, as the generated table judges them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from yeto_proto._generated import errors
from yeto_proto._generated.messages import (
    BcastFragment,
    BudgetDone,
    DataHello,
    FinalAck,
    FinalFragment,
    FinalManifest,
    Heartbeat,
    Hello,
    InitParams,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.rules import RULES, first_broken
from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.session import Session, WireLayout


class Link(NamedTuple):
    learner_id: int
    generation: int


LAYOUT = WireLayout.build([(MergeMode.RDA, [4], None)])
SESSION = Session(Dtype.F32, LAYOUT, b"f" * 32, b"c" * 32, None)
HELLO = Hello(2, 9, Dtype.F32, LAYOUT, b"f" * 32, b"c" * 32, None, 0)
LINK = Link(2, 9)
SERVER = SimpleNamespace(
    learners=3, profile_hash=b"p" * 32, require_profile=False, budget_steps=0, max_base_lag=None
)
HISTORY = SimpleNamespace(connected={5}, retired={4}, reported=False)
GROUP = SimpleNamespace(num_streams=2, attached={1})
HELD = SimpleNamespace(version=3, same_bytes=True, manifest=False, same_manifest=False, ack_sent=True)
ROUND = SimpleNamespace(
    global_step=7, fragment_id=0, attempt=2, base_version=6, members={LINK}, answered=set()
)
CUT = SimpleNamespace(global_step=7, eligible={LINK})
PUSH = PushFragment(2, 0, 7, 2, 6, 100, 10, 1000, b"")

CONTEXT = {
    "session": SESSION,
    "link": LINK,
    "server": SERVER,
    "history": HISTORY,
    "group": GROUP,
    "held": HELD,
    "round": ROUND,
    "cut": CUT,
}


def but(facts, **changes):
    """Facts with some of them changed."""
    return SimpleNamespace(**{**vars(facts), **changes})


# rule, message that keeps it, message that breaks it, facts under which that one breaks it
CASES = [
    ("hello.learner_id.must", HELLO, replace(HELLO, learner_id=3), {}),
    ("hello.connection_generation.connected", HELLO, replace(HELLO, connection_generation=5), {}),
    ("hello.connection_generation.retired", HELLO, replace(HELLO, connection_generation=4), {}),
    ("hello.dtype.session", HELLO, replace(HELLO, dtype=Dtype.BF16), {}),
    (
        "hello.layout.session",
        HELLO,
        replace(HELLO, layout=WireLayout.build([(MergeMode.AVG, [4], None)])),
        {},
    ),
    ("hello.layout_fingerprint.session", HELLO, replace(HELLO, layout_fingerprint=b"g" * 32), {}),
    ("hello.session_contract_hash.session", HELLO, replace(HELLO, session_contract_hash=b"d" * 32), {}),
    ("hello.syncer_profile_hash.required", HELLO, HELLO, {"server": but(SERVER, require_profile=True)}),
    ("hello.syncer_profile_hash.matches", HELLO, replace(HELLO, syncer_profile_hash=b"q" * 32), {}),
    ("hello.syncer_profile_hash.session", HELLO, replace(HELLO, syncer_profile_hash=b"p" * 32), {}),
    ("init_params.initializer", InitParams(0, b""), InitParams(0, b""), {"link": Link(1, 9)}),
    ("push_fragment.learner_id.must", PUSH, replace(PUSH, learner_id=1), {}),
    ("push_fragment.global_step.round", PUSH, replace(PUSH, global_step=8), {}),
    ("push_fragment.global_step.round", PUSH, replace(PUSH, fragment_id=1), {}),
    ("push_fragment.round_attempt.round", PUSH, replace(PUSH, round_attempt=1), {}),
    ("push_fragment.round_attempt.member", PUSH, PUSH, {"link": Link(2, 8)}),
    ("push_fragment.base_version.must", PUSH, replace(PUSH, base_version=7), {}),
    (
        "push_fragment.base_version.lag",
        replace(PUSH, base_version=5),
        replace(PUSH, base_version=4),
        {"server": but(SERVER, max_base_lag=1)},
    ),
    ("push_fragment.first", PUSH, PUSH, {"round": but(ROUND, answered={LINK})}),
    (
        "bcast_fragment.version.replay",
        BcastFragment(0, 3, b""),
        BcastFragment(0, 3, b""),
        {"held": but(HELD, same_bytes=False)},
    ),
    ("heartbeat.learner_id.must", Heartbeat(2, 1), Heartbeat(1, 1), {}),
    ("shutdown.acknowledged", Shutdown(), Shutdown(), {"held": but(HELD, ack_sent=False)}),
    ("data_hello.learner_id.must", DataHello(2, 9, 0), DataHello(3, 9, 0), {}),
    ("data_hello.stream_idx.must", DataHello(2, 9, 0), DataHello(2, 9, 2), {}),
    ("data_hello.stream_idx.free", DataHello(2, 9, 0), DataHello(2, 9, 1), {}),
    (
        "final_manifest.same",
        FinalManifest(7, (7,)),
        FinalManifest(7, (7,)),
        {"held": but(HELD, manifest=True)},
    ),
    ("final_ack.final_global_step.must", FinalAck(7), FinalAck(6), {}),
    ("final_ack.eligible", FinalAck(7), FinalAck(7), {"link": Link(2, 8)}),
    (
        "final_fragment.version.replay",
        FinalFragment(0, 3, b""),
        FinalFragment(0, 3, b""),
        {"held": but(HELD, same_bytes=False)},
    ),
    ("budget_done.exact_local_steps.mode", BudgetDone(50), BudgetDone(50), {"server": SERVER}),
    ("budget_done.exact_local_steps.target", BudgetDone(50), BudgetDone(51), {}),
    (
        "budget_done.exact_local_steps.once",
        BudgetDone(50),
        BudgetDone(50),
        {"history": but(HISTORY, reported=True)},
    ),
]
CASES = [pytest.param(*case, id=case[0], marks=pytest.mark.rule(case[0])) for case in CASES]


def context_for(rule: str, facts: dict[str, object]) -> dict[str, object]:
    context = {**CONTEXT, **facts}
    if rule.startswith("budget_done") and "server" not in facts:
        context["server"] = but(SERVER, budget_steps=50)
    if rule.startswith("init_params") and "link" not in facts:
        context["link"] = Link(0, 9)
    return context


@pytest.mark.parametrize(("rule", "keeps", "breaks", "facts"), CASES)
def test_a_rule_refuses_what_breaks_it_and_nothing_else(rule, keeps, breaks, facts):
    when = RULES[rule].when
    same = {} if breaks is keeps or breaks == keeps else facts
    assert first_broken(keeps.frame_type, when, keeps, **context_for(rule, same)) is None
    error = first_broken(breaks.frame_type, when, breaks, **context_for(rule, facts))
    assert error is not None
    assert error.rule == rule
    assert type(error) is RULES[rule].error
    assert error.frame == breaks.frame_type.name


def test_the_table_above_has_every_generated_rule_of_these_times():
    judged = {rule.id for rule in RULES.values() if rule.when in ("link", "round") and rule.check is not None}
    assert judged == {case.values[0] for case in CASES}


def test_an_error_names_both_sides_of_the_comparison():
    error = first_broken(4, "round", replace(PUSH, base_version=9), link=LINK, server=SERVER, round=ROUND)
    assert isinstance(error, errors.FutureBase)
    assert (error.seen, error.limit, error.offset) == (9, 6, 20)
    error = first_broken(8, "link", DataHello(2, 9, 2), server=SERVER, group=GROUP)
    assert (error.seen, error.limit, error.offset) == (2, 2, 14)


def test_what_is_not_known_yet_is_passed_over_when_the_caller_says_so():
    stranger = replace(HELLO, dtype=Dtype.Q4)
    known = {"server": SERVER, "history": HISTORY}
    assert first_broken(1, "link", stranger, session=None, **known) is None
    assert isinstance(first_broken(1, "link", stranger, session=SESSION, **known), errors.SessionMismatch)


def test_a_forgotten_fact_is_the_callers_mistake():
    with pytest.raises(errors.BadArgument, match="server"):
        first_broken(1, "link", HELLO, session=SESSION, history=HISTORY)


def test_rules_that_others_judge_are_not_judged_here():
    assert RULES["push_fragment.delta.finite"].by == "yeto_proto.dtypes"
    assert RULES["push_fragment.delta.finite"].check is None
    assert first_broken(4, "bulk", PUSH, session=SESSION) is None
    assert RULES["push_fragment.delta.finite"].broken(PUSH, {}) is None
    error = RULES["push_fragment.delta.finite"].error_at(offset=52, seen="nan")
    assert isinstance(error, errors.NonFinite)
    assert (error.rule, error.offset) == ("push_fragment.delta.finite", 52)
