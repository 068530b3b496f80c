"""Every setting of the coordinator, as numbers, and the rules between them.

Field names are the names of the flags. Sockets, TLS, keys and log formats are the shell's own settings:
nothing in them decides anything here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from yeto_proto._generated.types import IsoBackend
from yeto_syncer.core.later_flags import LONGEST, later_flags

DeltaCorrection: TypeAlias = Literal["heloco", "none"]
LearnerWeight: TypeAlias = Literal["tokens2-over-steps", "equal"]
IsoBackendName: TypeAlias = Literal["scalar", "torch-svd"]
Fold: TypeAlias = Literal["at-close", "on-arrival"]

DELTA_CORRECTIONS: Final = ("heloco", "none")
LEARNER_WEIGHTS: Final = ("tokens2-over-steps", "equal")
ISO_BACKENDS: Final = ("scalar", "torch-svd")
FOLDS: Final = ("at-close", "on-arrival")

MAX_U32: Final = 2**32 - 1
MAX_U64: Final = 2**64 - 1
MAX_F32: Final = (2.0 - 2.0**-23) * 2.0**127
CARRY_LAG: Final = 2
CARRY_DECAY: Final = 1.0
MAX_CARRY_LAG: Final = 1000  # closed rounds of each fragment that are remembered, and may hold a late delta


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that cannot be used: the flag, the rule that it breaks, and a way out."""

    flag: str
    rule: str
    fix: str

    def __str__(self) -> str:
        return f"{self.rule}; {self.flag}; {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one run. Times end in `_s` (seconds) or `_ms` (whole milliseconds: the profile hash holds
    them as u64). `None` means that the flag was not given. Paths are only looked at for being set."""

    learners: int
    total_steps: int
    quorum: int = 1
    grace_ms: int = 1000
    grace_gamma: float = 0.8
    grace_tau: float = 2.0
    pipeline: int = 2
    min_round_interval_ms: int = 0
    sync_interval_steps: float = 24.0
    delta_correction: DeltaCorrection = "heloco"
    quorum_timeout_s: int = 900
    final_ack_timeout_s: int | None = None
    policy_sweep_fragments: int | None = None
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    iso_backend: IsoBackendName = "scalar"
    final_state: str | None = None
    checkpoint_path: str | None = None
    checkpoint_every: int = 8
    resume: bool = False
    resume_if_exists: bool = False
    mark_final_checkpoint: bool = False
    checkpoint_on_start: bool = False
    background_checkpoint: bool = False
    learner_budget_steps: int | None = None
    event_tape: str | None = None
    max_base_lag: int | None = None
    learner_weight: LearnerWeight = "tokens2-over-steps"
    require_profile_binding: bool = False
    shutdown_timeout_s: float = 600.0
    handshake_timeout_s: float = 10.0
    write_timeout_s: float = 180.0
    max_pending_connections: int = 256
    min_start_learners: int | None = None
    observers: tuple[int, ...] = ()
    island_lease_s: float = 0.0
    fold: Fold = "at-close"
    late_carry: bool = False
    max_carry_lag: int = CARRY_LAG
    carry_decay: float = CARRY_DECAY
    carry_answers_round: bool = False
    quorum_capacity: float | None = None
    soft_deadline_s: float | None = None

    @property
    def grace_s(self) -> float:
        """The cap of the grace window in seconds."""
        return self.grace_ms / 1000.0

    @property
    def min_round_interval_s(self) -> float:
        return self.min_round_interval_ms / 1000.0

    @property
    def final_ack_s(self) -> float:
        """The resolved `--final-ack-timeout-s`: the quorum timeout where it was not given."""
        return float(self.quorum_timeout_s if self.final_ack_timeout_s is None else self.final_ack_timeout_s)

    @property
    def participants(self) -> int:
        """Launch ids that can be captured: all but the observers (D31)."""
        return self.learners - len(self.observers)

    @property
    def start_learners(self) -> int:
        """How many participants must be connected before training starts (D17)."""
        return self.participants if self.min_start_learners is None else self.min_start_learners

    @property
    def first_cut(self) -> int:
        """How many learners must have the initial cut before the first launch (D17): a quorum of them. Nobody
        has been measured then, so each has the same part of a capacity quorum."""
        share = 0 if self.quorum_capacity is None else math.ceil(self.quorum_capacity * self.start_learners)
        return min(max(self.quorum, share), self.participants)

    @property
    def per_round_checkpoint(self) -> bool:
        """True when each checkpoint must be durable before its broadcast."""
        return self.checkpoint_path is not None and self.checkpoint_every == 1

    @property
    def iso_backend_id(self) -> IsoBackend:
        """The backend as a checkpoint records it."""
        return IsoBackend.SCALAR if self.iso_backend == "scalar" else IsoBackend.TORCH_SVD

    @property
    def fixed_roster(self) -> bool:
        """True in the strict mode: the roster is all launch ids, all must answer, and from a fresh base."""
        return (
            self.max_base_lag == 0
            and self.quorum == self.learners
            and self.grace_ms == 0
            and self.quorum_capacity is None
        )

    def validate(self) -> list[Problem]:
        """All broken rules in the order of the command-line sheet; empty when the run may start.

        Rules that need a file (`--resume` without one) are the shell's.
        """
        return [
            *self._names(),
            *self._roster(),
            *self._sweep(),
            *self._resume(),
            *self._budget(),
            *self._ranges(),
            *self._checkpoints(),
            *self._start(),
            *self._modes(),
            *self._hashed(),
        ]

    def _names(self) -> Iterator[Problem]:
        for flag, value, allowed in (
            ("--delta-correction", self.delta_correction, DELTA_CORRECTIONS),
            ("--learner-weight", self.learner_weight, LEARNER_WEIGHTS),
            ("--iso-backend", self.iso_backend, ISO_BACKENDS),
            ("--fold", self.fold, FOLDS),
        ):
            if value not in allowed:
                yield Problem(flag, f"unknown name {value!r}", f"use one of: {', '.join(allowed)}")

    def _roster(self) -> Iterator[Problem]:
        if not 0 < self.learners <= MAX_U32:
            yield Problem("--learners", "must be at least 1", "give the number of learner ids, M")
        if self.quorum <= 0:
            yield Problem("--quorum", "must be at least 1", "give how many answers close a round")
        if self.quorum > self.learners:
            yield Problem(
                "--quorum",
                f"{self.quorum} is more than --learners {self.learners}",
                "lower --quorum or raise --learners",
            )
        if self.quorum_timeout_s <= 0:
            yield Problem("--quorum-timeout-s", "must be positive", "give seconds, e.g. 900")
        if self.mark_final_checkpoint and self.checkpoint_path is None:
            yield _needs_path("--mark-final-checkpoint")

    def _sweep(self) -> Iterator[Problem]:
        if self.policy_sweep_fragments is not None:
            yield Problem(
                "--policy-sweep-fragments",
                "policy sweeps are not available in this version",
                "leave the flag out; the files of a sweep can be read with yeto-checkpoint",
            )

    def _resume(self) -> Iterator[Problem]:
        if self.checkpoint_path is None:
            if self.resume:
                yield _needs_path("--resume")
            if self.resume_if_exists:
                yield _needs_path("--resume-if-exists")

    def _budget(self) -> Iterator[Problem]:
        budget = self.learner_budget_steps
        if budget is None:
            return
        flag = "--learner-budget-steps"
        if not 1 <= budget <= MAX_U32:
            yield Problem(flag, f"must be 1..{MAX_U32}", "give the exact number of local steps")
        if self.checkpoint_path is None:
            yield _needs_path(flag)
        if self.mark_final_checkpoint:
            yield Problem(flag, "cannot be used with --mark-final-checkpoint", "a cutoff is never final")
        if self.resume or self.resume_if_exists:
            yield Problem(flag, "cannot be used with --resume", "start the cutoff process fresh")

    def _ranges(self) -> Iterator[Problem]:
        for flag, value in (
            ("--total-steps", self.total_steps),
            ("--grace-ms", self.grace_ms),
            ("--pipeline", self.pipeline),
            ("--min-round-interval-ms", self.min_round_interval_ms),
            ("--checkpoint-every", self.checkpoint_every),
            ("--quorum-timeout-s", max(self.quorum_timeout_s, 0)),
            ("--final-ack-timeout-s", self.final_ack_timeout_s or 0),
            ("--max-base-lag", self.max_base_lag or 0),
            ("--shutdown-timeout-s", self.shutdown_timeout_s),
            ("--island-lease-s", self.island_lease_s),
        ):
            if not value >= 0:
                yield Problem(flag, f"must not be negative, got {value}", "give 0 or more")
            elif value > (MAX_U32 if flag == "--pipeline" else MAX_U64):
                yield Problem(flag, f"{value} is too large", "give a smaller number")
        for flag, real in (
            ("--grace-gamma", self.grace_gamma),
            ("--grace-tau", self.grace_tau),
            ("--sync-interval-steps", self.sync_interval_steps),
            ("--outer-lr", self.outer_lr),
            ("--outer-momentum", self.outer_momentum),
            ("--shutdown-timeout-s", self.shutdown_timeout_s),
            ("--island-lease-s", self.island_lease_s),
        ):
            if not math.isfinite(real):
                yield Problem(flag, f"must be a finite number, got {real}", "give a number")
            elif flag in ("--outer-lr", "--outer-momentum") and abs(real) > MAX_F32:
                yield Problem(flag, f"{real} is more than an f32 can hold", "give a smaller number")
        for flag, positive in (
            ("--handshake-timeout-s", self.handshake_timeout_s),
            ("--write-timeout-s", self.write_timeout_s),
            ("--max-pending-connections", self.max_pending_connections),
        ):
            if not (positive > 0 and math.isfinite(positive)):
                yield Problem(flag, f"must be positive, got {positive}", "give a number above 0")

    def _checkpoints(self) -> Iterator[Problem]:
        if self.checkpoint_on_start and self.checkpoint_path is None:
            yield _needs_path("--checkpoint-on-start")
        if self.background_checkpoint:
            if self.checkpoint_path is None:
                yield _needs_path("--background-checkpoint")
            if self.checkpoint_every < 2:
                yield Problem(
                    "--background-checkpoint",
                    f"needs --checkpoint-every of 2 or more, got {self.checkpoint_every}",
                    "raise --checkpoint-every, or leave the flag out: per-round checkpoints must be durable"
                    " before their broadcast",
                )

    def _start(self) -> Iterator[Problem]:
        flag = "--observers"
        if len(set(self.observers)) != len(self.observers):
            yield Problem(flag, "names an id twice", "name each id once")
        for learner in self.observers:
            if not 0 <= learner < self.learners:
                yield Problem(flag, f"{learner} is outside 0..{self.learners}", "name launch ids")
            elif learner == 0:
                yield Problem(flag, "learner 0 sends the initial parameters", "name another id")
        if self.observers and self.quorum > self.participants:
            yield Problem(
                "--quorum",
                f"{self.quorum} is more than the {self.participants} learners that are not observers",
                "lower --quorum or name fewer --observers",
            )
        if self.min_start_learners is not None and not 1 <= self.min_start_learners <= self.participants:
            yield Problem(
                "--min-start-learners",
                f"must be 1..{self.participants} (learners that are not observers)",
                "lower it, or leave it out to wait for all",
            )

    def _modes(self) -> Iterator[Problem]:
        """Streaming fold, late carry and capacity quorum (D34, D35, D36)."""
        if self.late_carry:
            if self.fold != "on-arrival":
                yield Problem("--late-carry", "needs --fold on-arrival", "add --fold on-arrival")
            if self.max_base_lag == 0:
                yield Problem(
                    "--late-carry",
                    "cannot be used with --max-base-lag 0: what is carried is always older than its round",
                    "raise --max-base-lag by the fragments of each round of lag, or leave it out",
                )
        else:
            for flag, given in (
                ("--carry-answers-round", self.carry_answers_round),
                ("--max-carry-lag", self.max_carry_lag != CARRY_LAG),
                ("--carry-decay", self.carry_decay != CARRY_DECAY),
            ):
                if given:
                    yield Problem(flag, "needs --late-carry", "add --late-carry, or leave the flag out")
        if not 1 <= self.max_carry_lag <= MAX_CARRY_LAG:
            yield Problem("--max-carry-lag", f"must be 1..{MAX_CARRY_LAG}", "give a number of rounds")
        if not 0.0 < self.carry_decay <= 1.0:
            yield Problem("--carry-decay", "must be above 0 and at most 1", "give a factor, e.g. 0.5")
        share, soft = self.quorum_capacity, self.soft_deadline_s
        if share is not None and not 0.0 < share <= 1.0:
            yield Problem("--quorum-capacity", "must be above 0 and at most 1", "give a share, e.g. 0.75")
        if soft is None:
            return
        if share is None:
            yield Problem("--soft-deadline-s", "needs --quorum-capacity", "add it, or leave the flag out")
        if not 0.0 < soft <= self.quorum_timeout_s:
            yield Problem(
                "--soft-deadline-s",
                f"must be above 0 and at most --quorum-timeout-s {self.quorum_timeout_s}",
                "give seconds that are over before a round is tried again",
            )

    def _hashed(self) -> Iterator[Problem]:
        """The profile hash gives the length of each value one byte (D40)."""
        for name, value in later_flags(self):
            if len(value) <= LONGEST:
                continue
            rule = f"takes {len(value)} characters in the profile hash, more than {LONGEST}"
            fix = "name fewer ids" if name == "observers" else "give a number that is not so small"
            yield Problem(f"--{name}", rule, fix)


def _needs_path(flag: str) -> Problem:
    return Problem(flag, "needs --checkpoint-path", "add --checkpoint-path FILE")
