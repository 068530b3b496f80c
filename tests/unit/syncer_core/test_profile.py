"""The semantic profile hash is the recipe, byte for byte, and later flags join only when they are on
(D40)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from yeto_syncer.core.config import Config
from yeto_syncer.core.profile import encode_profile, profile_hash

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "profile_hash.json").read_text(encoding="utf-8")
)["vectors"]


def config_of(vector: dict[str, Any]) -> Config:
    values = dict(vector["config"])
    path_set = values.pop("checkpoint_path_set")
    return Config(
        delta_correction="heloco" if values.pop("delta_correction") else "none",
        learner_weight="equal" if values.pop("learner_weight") else "tokens2-over-steps",
        checkpoint_path="state.ckpt" if path_set else None,
        resume=bool(values.pop("resume")),
        mark_final_checkpoint=bool(values.pop("mark_final")),
        require_profile_binding=bool(values.pop("require_profile_binding")),
        **values,
    )


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_the_vectors(vector: dict[str, Any]) -> None:
    config = config_of(vector)
    assert encode_profile(config).hex() == vector["encoded_hex"]
    assert len(encode_profile(config)) == vector["encoded_length"]
    assert profile_hash(config).hex() == vector["profile_hash_hex"]


BASE = config_of(VECTORS[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint_path": "/elsewhere/other.ckpt"},
        {"event_tape": "tape.jsonl"},
        {"final_state": "final.bin"},
        {"island_lease_s": 30.0},
        {"iso_backend": "torch-svd"},
        {"resume": False, "resume_if_exists": True},
        {"resume_if_exists": True},
    ],
)
def test_what_names_no_semantics_is_left_out(changes: dict[str, Any]) -> None:
    assert profile_hash(dataclasses.replace(BASE, **changes)) == profile_hash(BASE)


OTHERS: dict[str, Any] = {
    "delta_correction": "heloco",
    "learner_weight": "tokens2-over-steps",
    "checkpoint_path": None,
    "policy_sweep_fragments": 4,
    "learner_budget_steps": 9,
    "max_base_lag": None,
}
FIELDS = {field.name for field in dataclasses.fields(Config)}


@pytest.mark.parametrize("field", sorted({*VECTORS[0]["config"], *OTHERS} & FIELDS))
def test_every_field_of_the_recipe_counts(field: str) -> None:
    value = getattr(BASE, field)
    other: Any = OTHERS[field] if field in OTHERS else (not value if isinstance(value, bool) else value + 1)
    assert profile_hash(dataclasses.replace(BASE, **{field: other})) != profile_hash(BASE)


def test_an_absent_ack_timeout_hashes_as_the_quorum_timeout() -> None:
    absent = dataclasses.replace(BASE, quorum_timeout_s=33, final_ack_timeout_s=None)
    given = dataclasses.replace(BASE, quorum_timeout_s=33, final_ack_timeout_s=33)
    assert profile_hash(absent) == profile_hash(given)


@pytest.mark.parametrize(
    ("changes", "appended"),
    [
        ({"fold": "on-arrival"}, [("fold", "1")]),
        (
            {"fold": "on-arrival", "late_carry": True},
            [("carry-decay", "1"), ("fold", "1"), ("late-carry", "1"), ("max-carry-lag", "2")],
        ),
        (
            {
                "fold": "on-arrival",
                "late_carry": True,
                "carry_answers_round": True,
                "carry_decay": 1e-5,
                "max_carry_lag": 3,
            },
            [
                ("carry-answers-round", "1"),
                ("carry-decay", "0.00001"),
                ("fold", "1"),
                ("late-carry", "1"),
                ("max-carry-lag", "3"),
            ],
        ),
        ({"quorum_capacity": 0.75}, [("quorum-capacity", "0.75")]),
        (
            {"quorum_capacity": 1.0, "soft_deadline_s": 30.0, "observers": (2, 1)},
            [("observers", "1,2"), ("quorum-capacity", "1"), ("soft-deadline-s", "30")],
        ),
    ],
)
@pytest.mark.rule("syncer.profile.recipe")
def test_modes_are_appended_by_name(changes: dict[str, Any], appended: list[tuple[str, str]]) -> None:
    texts = [text.encode() for pair in appended for text in pair]
    expected = encode_profile(BASE) + b"".join(bytes([len(text)]) + text for text in texts)
    assert encode_profile(dataclasses.replace(BASE, **changes)) == expected


def test_later_flags_are_appended_in_alphabetical_order_when_on() -> None:
    config = dataclasses.replace(
        BASE, observers=(1,), min_start_learners=1, checkpoint_on_start=True, background_checkpoint=True
    )
    appended = b"".join(
        bytes([len(text)]) + text
        for pair in (
            (b"background-checkpoint", b"1"),
            (b"checkpoint-on-start", b"1"),
            (b"min-start-learners", b"1"),
            (b"observers", b"1"),
        )
        for text in pair
    )
    assert encode_profile(config) == encode_profile(BASE) + appended
    assert profile_hash(config) == hashlib.sha256(encode_profile(BASE) + appended).digest()
