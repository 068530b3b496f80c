"""What a simulated world is drawn from: the model, the session, and settings of syncer and learners."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from yeto_proto._generated.types import Dtype, MergeMode
from yeto_proto.layout import Fragment, Layout, Tensor
from yeto_proto.session import Session
from yeto_syncer.core.config import Config
from yeto_syncer.core.profile import profile_hash

CONTRACT = bytes(reversed(range(32)))


@cache
def layout_of(modes: tuple[MergeMode, ...]) -> Layout:
    """A fragment of two small tensors for each mode; an iso fragment has one matrix."""
    fragments = []
    for number, mode in enumerate(modes):
        if mode is MergeMode.ISO:
            tensors = (Tensor(f"{number}.matrix", 4, (2, 2)),)
        else:
            tensors = (Tensor(f"{number}.a", 3), Tensor(f"{number}.b", 2))
        fragments.append(Fragment(mode, tensors))
    return Layout(tuple(fragments))


@cache
def session_of(layout: Layout, dtype: Dtype, profile: bytes | None) -> Session:
    """The session of all learners of a world."""
    return Session(dtype, layout.wire(), layout.fingerprint(), CONTRACT, profile)


@dataclass(frozen=True)
class Habits:
    """How one learner lives."""

    pace: float  # seconds of one local step, about
    min_steps: int  # its H gate
    alpha: float
    streams: int
    heartbeat: float  # seconds between heartbeats
    saves_every: int  # local steps between two of its own checkpoints; 0 for none
    saves_anchors: bool
    probe: float  # seconds that a resumed learner 0 waits before it sends its own values
    rewinds: bool  # accept_rewound_catch_up
    reuses: bool  # reuse_anchor: several rounds are answered from one broadcast


@dataclass(frozen=True)
class Setup:
    """Everything about a world that does not change while it runs."""

    config: Config
    layout: Layout
    session: Session
    habits: tuple[Habits, ...]
    write_timeout: float
    latency: float  # seconds, about
    bulk_time: float  # longest time in which a bulk message leaves
    slow_disk: float  # longest write of a checkpoint
    merge_time: float  # longest merge


def draw(rng: Random) -> Setup:
    """A valid mix of settings. Strict rosters, streaming folds and capacity quorums have their share."""
    config = _config(rng)
    paces = [rng.choice((1.0, 2.0, 4.0, 10.0)) for _ in range(config.learners)]
    # A learner looks at the final cut after its step, so an ACK may take as long as the longest one.
    patience = math.ceil(1.25 * max(paces)) + 4
    config = replace(config, final_ack_timeout_s=rng.choice((None, *(patience,) * 4, 2 * patience, 60)))
    modes = rng.choices((MergeMode.AVG, MergeMode.RDA, MergeMode.ISO), (8, 3, 1), k=rng.randint(1, 4))
    layout = layout_of(tuple(modes))
    bound = config.require_profile_binding or rng.random() < 0.3
    dtype = rng.choice((Dtype.F32, Dtype.F32, Dtype.BF16, Dtype.Q4, Dtype.Q4))
    session = session_of(layout, dtype, profile_hash(config) if bound else None)
    # Only a syncer that never shows a step which is not durable comes back with what its learners hold.
    cautious = config.per_round_checkpoint and rng.random() < 0.5
    return Setup(
        config,
        layout,
        session,
        tuple(_habits(rng, pace, rewinds=not cautious) for pace in paces),
        write_timeout=rng.choice((20.0, 20.0, 100.0)),
        latency=rng.choice((0.001, 0.05, 0.3)),
        bulk_time=rng.choice((0.0, 0.1, 1.5, 3.0)),
        slow_disk=rng.choice((0.1, 3.0, 15.0)),
        merge_time=rng.choice((0.01, 0.5, 4.0)),
    )


def _habits(rng: Random, pace: float, *, rewinds: bool) -> Habits:
    return Habits(
        pace=pace,
        min_steps=rng.choice((1, 1, 2, 4)),
        alpha=rng.choice((0.0, 0.5)),
        streams=rng.choice((0, 1, 2, 2, 3)),
        heartbeat=rng.choice((5.0, 30.0)),
        saves_every=rng.choice((0, 3, 10)),
        saves_anchors=rng.random() < 0.5,
        probe=rng.choice((5.0, 30.0)),
        rewinds=rewinds,
        reuses=rng.random() < 0.1,
    )


def _config(rng: Random) -> Config:
    learners = rng.choice((1, 2, 2, 3, 3, 4, 5))
    observers = (learners - 1,) if learners > 2 and rng.random() < 0.75 else ()
    participants = learners - len(observers)
    path = rng.random() < 0.8
    every = rng.choice((0, 1, 1, 2, 3, 8))
    config = Config(
        learners=learners,
        quorum=rng.randint(1, participants),
        total_steps=rng.randint(2, 18),
        grace_ms=rng.choice((0, 2000, 8000, 20_000)),
        max_base_lag=rng.choice((None, None, None, 0, 0, 1, 4)),
        pipeline=rng.randint(0, 4),
        min_round_interval_ms=rng.choice((0, 0, 500)),
        sync_interval_steps=rng.choice((0.0, 0.0, 2.0, 6.0)),
        quorum_timeout_s=rng.choice((15, 15, 40, 90)),
        checkpoint_path="state.ckpt" if path else None,
        checkpoint_every=every,
        resume_if_exists=path,
        mark_final_checkpoint=path and rng.random() < 0.5,
        final_state="final.bin" if rng.random() < 0.3 else None,
        checkpoint_on_start=path and rng.random() < 0.4,
        background_checkpoint=path and every >= 2 and rng.random() < 0.5,
        min_start_learners=rng.choice((None, None, 1)),
        observers=observers,
        island_lease_s=rng.choice((0.0, 0.0, 40.0)),
        learner_weight=rng.choice(("equal", "tokens2-over-steps", "tokens2-over-steps")),
        delta_correction=rng.choice(("heloco", "none")),
        outer_lr=rng.choice((0.7, 1.0)),
        outer_momentum=rng.choice((0.0, 0.9)),
        shutdown_timeout_s=rng.choice((1.0, 5.0, 60.0)),
        require_profile_binding=rng.random() < 0.3,
        event_tape="tape.jsonl",
    )
    special = rng.random()
    if special < 0.12 and not observers:
        config = replace(config, quorum=learners, grace_ms=0, max_base_lag=0)  # the strict roster
    elif special < 0.30:
        config = replace(config, fold="on-arrival")
        if rng.random() < 0.7:
            config = replace(
                config,
                late_carry=True,
                max_base_lag=rng.choice((None, 8)),
                max_carry_lag=rng.randint(1, 3),
                carry_decay=rng.choice((1.0, 0.5)),
                carry_answers_round=rng.random() < 0.5,
            )
    elif special < 0.38:
        config = replace(
            config,
            quorum_capacity=rng.choice((0.3, 0.7, 1.0)),
            soft_deadline_s=rng.choice((None, 3.0, 10.0)),
        )
    problems = config.validate()
    assert problems == [], problems
    return config
