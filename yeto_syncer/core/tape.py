"""The records of the event tape, in the field names of the tape's readers. One record per commit, in step
order."""

from __future__ import annotations

from yeto_proto._generated.constants import PROTOCOL_VERSION
from yeto_syncer.core.config import Config
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.model import Model
from yeto_syncer.core.rounds import Accepted, Round

DELTA_SEMANTICS = "local_minus_raw_anchor"


def merge_record(
    round_: Round,
    answers: list[Accepted],
    *,
    gnorm: float,
    fold: str,
    layout_hash: str,
    sync_s: float,
    now: float,
) -> dict[str, object]:
    """What one committed round was: who was asked, who answered with what, and how long each part took.

    `answers` are sorted by (id, generation). `sync_s` covers the merge, the commit and a per-round
    checkpoint; `now` is the end of the commit.
    """
    slots = round_.slots.values()
    expected = sorted(slot.link for slot in slots)
    responded = sorted((slot.answer or slot).link for slot in slots if slot.responded)
    missed = sorted(slot.link for slot in slots if not slot.responded)
    total_weight = sum(answer.weight for answer in answers)
    since = round_.launched_at
    waited = None
    if round_.grace_s is not None and round_.quorum_at is not None and round_.completed_at is not None:
        waited = milliseconds(round_.completed_at - round_.quorum_at)
    return {
        "protocol_version": PROTOCOL_VERSION,
        "delta_semantics": DELTA_SEMANTICS,
        "step": round_.global_step,
        "fragment": round_.fragment_id,
        "launch_base_version": round_.base_version,
        "attempt": round_.attempt,
        "gnorm": gnorm,
        "ms": milliseconds(now - since),
        "quorum": round_.quorum,
        "expected": [link.learner_id for link in expected],
        "expected_members": _members(expected),
        "responded": [link.learner_id for link in responded],
        "responded_members": _members(responded),
        "missed_grace": [link.learner_id for link in missed],
        "missed_members": _members(missed),
        "quorum_ms": None if round_.quorum_at is None else milliseconds(round_.quorum_at - since),
        "grace_ms": None if round_.grace_s is None else milliseconds(round_.grace_s),
        "grace_waited_ms": waited,
        "capacity_share": round_.capacity_share,
        "sync_ms": milliseconds(sync_s),
        "fold": fold,
        "responders": [
            {
                "id": answer.link.learner_id,
                "generation": answer.link.generation,
                "base_version": answer.base_version,
                "staleness": max(round_.base_version - answer.base_version, 0),
                "c_steps": answer.c_steps,
                "c_tokens": answer.c_tokens,
                "weight": answer.weight,
                "contribution": answer.weight / total_weight if total_weight else 0.0,
                "lag": answer.lag,
                "order": answer.order if fold == "on-arrival" else place,
            }
            for place, answer in enumerate(answers)
        ],
        "sync/layout_hash": layout_hash,
        "sync/base_version": round_.base_version,
        "sync/responders": len(answers),
        "sync/quorum": round_.quorum,
        "sync/rejected_stale_updates": 0,
        "sync/merge_seconds": milliseconds(sync_s) / 1000,
        "sync/global_delta_norm": gnorm,
    }


def start_record(config: Config, model: Model, *, resumed: bool) -> dict[str, object]:
    """A process has its session. It tells only what other records are read with."""
    return {
        "event": "run_started",
        "step": model.global_step,
        "resumed": resumed,
        "learners": config.learners,
        "quorum": config.quorum,
        "total_steps": config.total_steps,
        "fragments": model.num_fragments,
    }


def member_record(event: str, link: Link, **fields: object) -> dict[str, object]:
    """Something about one generation: it joined, left, came back, took a slot over or was pulled into a
    round."""
    return {"event": event, "id": link.learner_id, "generation": link.generation, **fields}


def round_record(event: str, round_: Round, **fields: object) -> dict[str, object]:
    """A round was tried again or dropped."""
    return {
        "event": event,
        "step": round_.global_step,
        "fragment": round_.fragment_id,
        "attempt": round_.attempt,
        **fields,
    }


def _members(links: list[Link]) -> list[dict[str, int]]:
    return [{"id": link.learner_id, "generation": link.generation} for link in links]


def milliseconds(seconds: float) -> int:
    """A time span as the tape tells it."""
    return round(seconds * 1000)
