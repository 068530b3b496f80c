"""What the rules of the spec may ask about this server (contexts `server` and `history`)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from yeto_syncer.core.config import Config
from yeto_syncer.core.profile import profile_hash


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The configuration of the syncer, under the names of the spec."""

    learners: int
    profile_hash: bytes
    require_profile: bool
    budget_steps: int  # 0 outside budget mode
    max_base_lag: int | None

    @classmethod
    def of(cls, config: Config) -> ServerFacts:
        return cls(
            config.learners,
            profile_hash(config),
            config.require_profile_binding,
            config.learner_budget_steps or 0,
            config.max_base_lag,
        )


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """What is remembered of the learner that a frame names."""

    connected: Set[int] = frozenset()
    retired: Set[int] = frozenset()
    reported: bool = False
