"""Settings that cannot be used are named with their flag and their rule, in the order of the flags' table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from yeto_syncer.core.config import Config

GOOD = Config(learners=3, total_steps=10, quorum=2)
PATH = {"checkpoint_path": "state.ckpt"}
CARRY = {"fold": "on-arrival", "late_carry": True}


def flags(**changes: Any) -> list[str]:
    return [problem.flag for problem in dataclasses.replace(GOOD, **changes).validate()]


def test_the_defaults_are_valid() -> None:
    assert Config(learners=1, total_steps=1).validate() == []


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"learners": 0, "quorum": 0}, "--learners"),
        ({"learners": 2**32}, "--learners"),
        ({"quorum": 0}, "--quorum"),
        ({"quorum": 4}, "--quorum"),
        ({"quorum_timeout_s": 0}, "--quorum-timeout-s"),
        ({"mark_final_checkpoint": True}, "--mark-final-checkpoint"),
        ({"policy_sweep_fragments": 4}, "--policy-sweep-fragments"),
        ({"resume": True}, "--resume"),
        ({"resume_if_exists": True}, "--resume-if-exists"),
        ({"learner_budget_steps": 0, **PATH}, "--learner-budget-steps"),
        ({"learner_budget_steps": 2**32, **PATH}, "--learner-budget-steps"),
        ({"learner_budget_steps": 5}, "--learner-budget-steps"),
        ({"learner_budget_steps": 5, "mark_final_checkpoint": True, **PATH}, "--learner-budget-steps"),
        ({"learner_budget_steps": 5, "resume": True, **PATH}, "--learner-budget-steps"),
        ({"total_steps": -1}, "--total-steps"),
        ({"total_steps": 2**64}, "--total-steps"),
        ({"quorum_timeout_s": 2**64}, "--quorum-timeout-s"),
        ({"pipeline": 2**32}, "--pipeline"),
        ({"grace_ms": -1}, "--grace-ms"),
        ({"grace_gamma": float("nan")}, "--grace-gamma"),
        ({"grace_tau": float("inf")}, "--grace-tau"),
        ({"sync_interval_steps": float("nan")}, "--sync-interval-steps"),
        ({"outer_lr": float("nan")}, "--outer-lr"),
        ({"outer_momentum": float("inf")}, "--outer-momentum"),
        ({"outer_lr": 1e300}, "--outer-lr"),
        ({"outer_momentum": -4e38}, "--outer-momentum"),
        ({"learners": 256, "observers": tuple(range(100, 200))}, "--observers"),
        ({"quorum_capacity": 1e-300}, "--quorum-capacity"),
        ({"quorum_capacity": 0.5, "soft_deadline_s": 1e-300}, "--soft-deadline-s"),
        ({**CARRY, "carry_decay": 1e-300}, "--carry-decay"),
        ({"handshake_timeout_s": 0.0}, "--handshake-timeout-s"),
        ({"write_timeout_s": -1.0}, "--write-timeout-s"),
        ({"max_pending_connections": 0}, "--max-pending-connections"),
        ({"island_lease_s": float("nan")}, "--island-lease-s"),
        ({"shutdown_timeout_s": -1.0}, "--shutdown-timeout-s"),
        ({"checkpoint_on_start": True}, "--checkpoint-on-start"),
        ({"background_checkpoint": True}, "--background-checkpoint"),
        ({"background_checkpoint": True, "checkpoint_every": 1, **PATH}, "--background-checkpoint"),
        ({"background_checkpoint": True, "checkpoint_every": 0, **PATH}, "--background-checkpoint"),
        ({"observers": (0,)}, "--observers"),
        ({"observers": (3,)}, "--observers"),
        ({"observers": (2, 2)}, "--observers"),
        ({"observers": (1, 2)}, "--quorum"),
        ({"min_start_learners": 0}, "--min-start-learners"),
        ({"min_start_learners": 3, "observers": (2,)}, "--min-start-learners"),
        ({"delta_correction": "helico"}, "--delta-correction"),
        ({"learner_weight": "tokens"}, "--learner-weight"),
        ({"iso_backend": "cuda"}, "--iso-backend"),
        ({"fold": "late"}, "--fold"),
        ({"late_carry": True}, "--late-carry"),
        ({**CARRY, "max_base_lag": 0}, "--late-carry"),
        ({"carry_answers_round": True}, "--carry-answers-round"),
        ({"max_carry_lag": 3}, "--max-carry-lag"),
        ({"carry_decay": 0.5}, "--carry-decay"),
        ({**CARRY, "max_carry_lag": 0}, "--max-carry-lag"),
        ({**CARRY, "max_carry_lag": 1001}, "--max-carry-lag"),
        ({**CARRY, "carry_decay": 0.0}, "--carry-decay"),
        ({**CARRY, "carry_decay": 1.01}, "--carry-decay"),
        ({**CARRY, "carry_decay": float("nan")}, "--carry-decay"),
        ({"quorum_capacity": 0.0}, "--quorum-capacity"),
        ({"quorum_capacity": 1.5}, "--quorum-capacity"),
        ({"quorum_capacity": float("nan")}, "--quorum-capacity"),
        ({"soft_deadline_s": 3.0}, "--soft-deadline-s"),
        ({"quorum_capacity": 0.5, "soft_deadline_s": 0.0}, "--soft-deadline-s"),
        ({"quorum_capacity": 0.5, "soft_deadline_s": 901.0}, "--soft-deadline-s"),
        ({"quorum_capacity": 0.5, "soft_deadline_s": float("inf")}, "--soft-deadline-s"),
    ],
)
def test_a_bad_setting_is_named_first(changes: dict[str, Any], flag: str) -> None:
    assert flags(**changes)[0] == flag


@pytest.mark.parametrize(
    "changes",
    [
        {"min_start_learners": 1},
        {"observers": (2,)},
        {"background_checkpoint": True, **PATH},
        {"checkpoint_on_start": True, **PATH},
        {"checkpoint_every": 0, **PATH},
        {"max_base_lag": 0, "quorum": 3, "grace_ms": 0},
        {"total_steps": 0},
        {"final_ack_timeout_s": 0},
        {"sync_interval_steps": -1.0},
        {"iso_backend": "torch-svd"},
        {"fold": "on-arrival"},
        CARRY,
        {**CARRY, "max_carry_lag": 1000, "carry_decay": 0.25, "carry_answers_round": True},
        {**CARRY, "max_base_lag": 12},
        {"quorum_capacity": 1.0},
        {"quorum_capacity": 0.01, "soft_deadline_s": 900.0},
    ],
)
def test_unusual_settings_that_are_allowed(changes: dict[str, Any]) -> None:
    assert flags(**changes) == []


def test_problems_come_in_the_order_of_the_table() -> None:
    order = flags(
        learners=0, quorum_timeout_s=0, mark_final_checkpoint=True, policy_sweep_fragments=1, resume=True
    )
    assert order[:6] == [
        "--learners",
        "--quorum",
        "--quorum-timeout-s",
        "--mark-final-checkpoint",
        "--policy-sweep-fragments",
        "--resume",
    ]


def test_a_problem_reads_what_where_what_to_do() -> None:
    (problem,) = dataclasses.replace(GOOD, quorum=9).validate()
    assert str(problem) == "9 is more than --learners 3; --quorum; lower --quorum or raise --learners"


def test_derived_values() -> None:
    config = Config(learners=5, total_steps=1, observers=(3, 4), quorum_timeout_s=7, grace_ms=250)
    assert (config.participants, config.start_learners) == (3, 3)
    assert (config.final_ack_s, config.grace_s) == (7.0, 0.25)
    assert dataclasses.replace(config, final_ack_timeout_s=0).final_ack_s == 0.0
    assert not config.fixed_roster
    strict = Config(learners=2, total_steps=1, quorum=2, grace_ms=0, max_base_lag=0)
    assert strict.fixed_roster
    assert not dataclasses.replace(strict, quorum_capacity=0.5).fixed_roster
