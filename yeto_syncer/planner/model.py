"""The formulas: from the size of a model and the rates of a machine to memory, disk, bytes and seconds.

Memory follows the budget that the syncer keeps (bytes of state, of answers as received, of encoded copies),
bytes on the wire and on the disk follow the specification exactly. Nothing here measures or prints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from yeto_proto._generated.constants import CHUNK_HEAD_BYTES, CHUNK_SLICE, HEADER_BYTES
from yeto_proto._generated.files import ARRAYS_PER_FRAGMENT, F32, SnapshotVersion
from yeto_proto._generated.sizes import (
    BCAST_FRAGMENT_BYTES,
    FINAL_FRAGMENT_BYTES,
    INIT_PARAMS_BYTES,
    PULL_REQ_BYTES,
    PUSH_FRAGMENT_BYTES,
    bulk_bytes,
    final_bytes,
    push_bytes,
)
from yeto_proto._generated.types import Dtype
from yeto_proto.files import Trailer, TrailerForm, snapshot_bytes

VALUE: Final = F32.itemsize
DECODED_FRAGMENTS: Final = 2
"""Answers of a merge that are f32 at one time, at most."""
CHECKPOINT: Final = "the checkpoint"
LEARNER_BYTES: Final = 64 << 20
"""What the buffers of one learner's connections may come to."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one machine; `merge` in answer values a second (a value of each learner counts), the others in
    bytes a second. `encode` counts the f32 side and is infinite for an f32 session, which encodes nothing."""

    merge: float
    encode: float
    disk: float
    socket: float


@dataclass(frozen=True, slots=True)
class Need:
    """The run that is planned.

    numels: values of each fragment. link, learner_link: bytes a second each way of the syncer and of a
    learner. checkpoint_every: steps, 0 for the last one only. interval: H, inner steps between two
    synchronisations of a fragment. step_seconds: of one inner step, or None when it is not known.
    iso_fragments: how many of the fragments are merged by iso.
    """

    numels: tuple[int, ...]
    learners: int
    dtype: Dtype
    link: float
    learner_link: float
    pipeline: int
    on_arrival: bool
    checkpoint_every: int
    background: bool
    interval: float
    step_seconds: float | None
    iso_fragments: int = 0

    @property
    def parameters(self) -> int:
        return sum(self.numels)

    @property
    def largest(self) -> int:
        return max(self.numels)

    @property
    def rounds_in_flight(self) -> int:
        return min(self.pipeline, len(self.numels))


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the plan: `value` in the unit of its table, and how it comes about."""

    name: str
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs. Bytes, bytes and seconds; `period` is the time from one commit to the next when
    rounds overlap, and `binds` names the part of it that takes longest."""

    memory: tuple[Item, ...]
    disk: tuple[Item, ...]
    learner_memory: tuple[Item, ...]
    wire: tuple[Item, ...]
    once: tuple[Item, ...]
    round: tuple[Item, ...]
    period: float
    binds: str
    step_interval: float | None
    notes: tuple[str, ...]

    @property
    def memory_total(self) -> float:
        """Peak of the syncer's memory above the interpreter, in bytes."""
        return sum(item.value for item in self.memory)

    @property
    def disk_total(self) -> float:
        return sum(item.value for item in self.disk)


def even_fragments(parameters: int, fragments: int) -> tuple[int, ...]:
    """As many values in each fragment as in the others, or one more."""
    small, more = divmod(parameters, fragments)
    return (small + 1,) * more + (small,) * (fragments - more)


def chunked_bytes(payload: int) -> int:
    """Bytes on the wire of a message with this payload when it travels in chunks (D8)."""
    total = HEADER_BYTES + payload
    return total + math.ceil(total / CHUNK_SLICE) * (HEADER_BYTES + CHUNK_HEAD_BYTES)


def push_wire(dtype: Dtype, numel: int) -> int:
    """Bytes of one answer."""
    return chunked_bytes(PUSH_FRAGMENT_BYTES + push_bytes(dtype, numel))


def broadcast_wire(dtype: Dtype, numel: int) -> int:
    """Bytes of one broadcast to one learner."""
    return chunked_bytes(BCAST_FRAGMENT_BYTES + bulk_bytes(dtype, numel))


def init_wire(dtype: Dtype, numels: Sequence[int]) -> int:
    """Bytes of all INIT_PARAMS of learner 0."""
    return sum(chunked_bytes(INIT_PARAMS_BYTES + bulk_bytes(dtype, numel)) for numel in numels)


def final_wire(numels: Sequence[int]) -> int:
    """Bytes of the f32 final cut to one learner."""
    return sum(chunked_bytes(FINAL_FRAGMENT_BYTES + final_bytes(numel)) for numel in numels)


def checkpoint_bytes(numels: Sequence[int], learners: int) -> int:
    """Length of the V3 checkpoint with an entry for every learner and a session contract."""
    return snapshot_bytes(SnapshotVersion.V3, numels, learners, Trailer(TrailerForm.CONTRACT))


def plan(need: Need, rates: Rates) -> Plan:
    """All of it."""
    largest = need.largest
    parts = _round(need, rates)
    period, binds = _period(need, parts)
    interval = None
    if need.step_seconds is not None and need.interval:
        interval = need.interval * need.step_seconds / len(need.numels)
        if interval > period:
            period, binds = interval, "training: the launch throttle waits for inner steps"
    return Plan(
        memory=_memory(need),
        disk=_disk(need),
        learner_memory=(
            Item("anchors", VALUE * need.parameters, "4 bytes a parameter"),
            Item(
                "one fragment in reception",
                bulk_bytes(need.dtype, largest),
                "the largest, as the wire has it",
            ),
        ),
        wire=(
            Item(
                "to one learner, a round",
                HEADER_BYTES + PULL_REQ_BYTES + broadcast_wire(need.dtype, largest),
                "PULL_REQ and BCAST_FRAGMENT of the largest fragment",
            ),
            Item("from one learner, a round", push_wire(need.dtype, largest), "PUSH_FRAGMENT"),
            Item("INIT of learner 0", init_wire(need.dtype, need.numels), "once a run"),
            Item("a catch-up", sum(broadcast_wire(need.dtype, n) for n in need.numels), "each join"),
            Item("the final cut to one learner", final_wire(need.numels), "f32 in every session"),
        ),
        once=_once(need, rates),
        round=parts,
        period=period,
        binds=binds,
        step_interval=interval,
        notes=_notes(need, parts, interval),
    )


def _memory(need: Need) -> tuple[Item, ...]:
    largest, flying = need.largest, need.rounds_in_flight
    items = [
        Item(
            "state",
            ARRAYS_PER_FRAGMENT * VALUE * need.parameters,
            "parameters and momentum, 8 bytes a parameter",
        ),
        Item(
            "results of merges",
            flying * ARRAYS_PER_FRAGMENT * VALUE * largest,
            f"new parameters and momentum of {flying} rounds in flight",
        ),
    ]
    if need.on_arrival:
        items.append(Item("sums", flying * VALUE * largest, "one f32 sum for each round in flight"))
    answers = 1 if need.on_arrival else need.learners
    items += [
        Item(
            "answers",
            flying * answers * push_bytes(need.dtype, largest),
            f"{flying} x {answers} as received",
        ),
        Item("decoding", DECODED_FRAGMENTS * VALUE * largest, "two f32 fragments at most"),
    ]
    if need.dtype is not Dtype.F32:
        items.append(
            Item(
                "encoded broadcasts",
                sum(bulk_bytes(need.dtype, numel) for numel in need.numels),
                "at most one copy of each fragment, while a catch-up is sent",
            )
        )
    if need.background and need.checkpoint_every:
        items.append(
            Item(
                "background checkpoint",
                ARRAYS_PER_FRAGMENT * VALUE * need.parameters,
                "at worst: every fragment commits before the writer reaches it",
            )
        )
    items.append(Item("connections", need.learners * LEARNER_BYTES, "64 MiB a learner"))
    return tuple(items)


def _disk(need: Need) -> tuple[Item, ...]:
    size = checkpoint_bytes(need.numels, need.learners)
    return (
        Item("checkpoint", size, "V3"),
        Item("its temporary file", size, "while one is written"),
        Item("final state", VALUE * need.parameters, "with --final-state"),
    )


def _round(need: Need, rates: Rates) -> tuple[Item, ...]:
    largest, learners = need.largest, need.learners
    ours, theirs = min(need.link, rates.socket), min(need.learner_link, rates.socket)
    push, broadcast = push_wire(need.dtype, largest), broadcast_wire(need.dtype, largest)
    items = [
        Item("answers into the syncer", learners * push / ours, f"{learners} answers share its link"),
        Item("an answer out of a learner", push / theirs, "its own link"),
        Item("the merge", learners * largest / rates.merge, "measured"),
    ]
    if need.dtype is not Dtype.F32:
        items.append(Item("encoding the broadcast", VALUE * largest / rates.encode, "once for all learners"))
    items += [
        Item(
            "broadcasts out of the syncer",
            learners * broadcast / ours,
            f"{learners} broadcasts share its link",
        ),
        Item("a broadcast into a learner", broadcast / theirs, "its own link"),
    ]
    if need.checkpoint_every:
        every = need.checkpoint_every
        share = checkpoint_bytes(need.numels, learners) / rates.disk / every
        items.append(Item(CHECKPOINT, share, "every round" if every == 1 else f"1/{every} of one"))
    return tuple(items)


def _once(need: Need, rates: Rates) -> tuple[Item, ...]:
    ours, theirs = min(need.link, rates.socket), min(need.learner_link, rates.socket)
    one = min(ours, theirs)
    final = final_wire(need.numels)
    return (
        Item("INIT", init_wire(need.dtype, need.numels) / one, "learner 0 alone"),
        Item(
            "one catch-up", sum(broadcast_wire(need.dtype, n) for n in need.numels) / one, "one learner joins"
        ),
        Item(
            "the final cut",
            max(need.learners * final / ours, final / theirs),
            f"{need.learners} learners share the syncer's link",
        ),
        Item("one checkpoint", checkpoint_bytes(need.numels, need.learners) / rates.disk, "write and fsync"),
    )


def _period(need: Need, parts: tuple[Item, ...]) -> tuple[float, str]:
    """Seconds from one commit to the next, and which part takes most of them.

    Parts of different rounds overlap when several are in flight. A checkpoint that is not written in the
    background holds up everything else.
    """
    slowest = max(parts, key=lambda item: item.value)
    if need.pipeline == 1:
        return sum(item.value for item in parts), f"{slowest.name}; one round at a time, so all parts add up"
    stall = 0.0 if need.background else sum(item.value for item in parts if item.name == CHECKPOINT)
    others = max(item.value for item in parts if item.name != CHECKPOINT)
    return max(others + stall, slowest.value), slowest.name


def _notes(need: Need, parts: tuple[Item, ...], interval: float | None) -> tuple[str, ...]:
    notes = []
    stall = sum(item.value for item in parts if item.name == CHECKPOINT)
    rest = max(item.value for item in parts if item.name != CHECKPOINT)
    if need.checkpoint_every > 1 and not need.background and stall > rest / 10:
        notes.append(
            "periodic checkpoints hold the rounds up: --background-checkpoint writes them beside the rounds"
        )
    slowest = max(item.value for item in parts)
    if interval is not None and interval < slowest:
        factor = math.ceil(slowest / interval * need.interval)
        notes.append(
            f"a round cannot keep up with H = {need.interval:g} inner steps: rounds will be about "
            f"{factor} inner steps of a fragment apart"
        )
    if need.pipeline > len(need.numels):
        notes.append(f"only {len(need.numels)} rounds can be in flight: each is on a fragment of its own")
    if need.iso_fragments:
        notes.append(
            f"{need.iso_fragments} of the fragments are merged by iso: the singular value decompositions of "
            "their matrices are in no figure here, neither their time nor their memory (with --iso-backend "
            "scalar some four f64 copies of a matrix for each thread that merges)"
        )
    return tuple(notes)
