"""When a gathering round has gathered enough: a quorum of answers or capacity, grace, deadlines (D1, D36)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from yeto_proto._generated.machines import RoundInput, RoundState
from yeto_syncer.core.config import Config
from yeto_syncer.core.jobs import Link
from yeto_syncer.core.registry import Group
from yeto_syncer.core.rounds import Round, Slot
from yeto_syncer.core.steprate import capacities, grace_window

# A share of sums of capacities that misses THETA by less than this has only been rounded.
ROUNDING = 1e-9


class Closing:
    """The rules by which a round closes. `slowest` gives xi_step of some links, `sync_s` the last xi_sync."""

    def __init__(
        self,
        config: Config,
        slowest: Callable[[Sequence[Link]], float | None],
        sync_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._slowest = slowest
        self._sync_s = sync_s

    def capture(self, round_: Round, members: Sequence[Group], now: float) -> None:
        """Begin an attempt with these members. K, their capacities and both deadlines are fixed here."""
        config = self._config
        if config.quorum_capacity is None:
            slots = [Slot(group.link) for group in members]
        else:
            shares = capacities([group.rate.seconds for group in members])
            slots = [Slot(group.link, share) for group, share in zip(members, shares, strict=True)]
        soft = None if config.soft_deadline_s is None else now + config.soft_deadline_s
        round_.capture(slots, config.quorum, now, now + config.quorum_timeout_s, soft)

    def judge(self, round_: Round, now: float) -> bool:
        """Move an open round on as far as it goes; True when its deadline has passed without a quorum."""
        if round_.state is RoundState.GATHERING:
            if self._reached(round_):
                round_.quorum_at = now
                if not round_.all_answered:
                    self._arm_grace(round_, now)
            elif self._softly(round_, now):
                self._complete(round_, now, RoundInput.SOFT_DEADLINE)
                return False
            elif now >= round_.deadline:
                return True
        if round_.all_answered:
            self._complete(round_, now, RoundInput.ALL_ANSWERED)
        elif round_.grace_deadline is not None and now >= round_.grace_deadline:
            self._complete(round_, now, RoundInput.GRACE_OVER)
        return False

    def due(self, round_: Round, now: float) -> float:
        """When `judge` has to look at an open round again, if nothing happens to it."""
        if round_.grace_deadline is not None:
            return round_.grace_deadline
        if round_.soft_deadline is not None and now < round_.soft_deadline < round_.deadline:
            return round_.soft_deadline
        return round_.deadline

    def _reached(self, round_: Round) -> bool:
        if round_.num_responders == 0:
            return False
        if self._config.quorum_capacity is None:
            return round_.num_responders >= round_.quorum
        return round_.capacity_share >= self._config.quorum_capacity * (1.0 - ROUNDING)

    def _softly(self, round_: Round, now: float) -> bool:
        return (
            round_.soft_deadline is not None
            and now >= round_.soft_deadline
            and round_.num_responders > 0
            and round_.num_responders >= round_.quorum
        )

    def _arm_grace(self, round_: Round, now: float) -> None:
        config = self._config
        round_.take(RoundInput.QUORUM_REACHED)
        round_.grace_s = grace_window(
            cap=config.grace_s,
            gamma=config.grace_gamma,
            tau=config.grace_tau,
            step=self._slowest([slot.link for slot in round_.slots.values()]),
            quorum=now - round_.launched_at,
            sync=self._sync_s(),
        )
        round_.grace_deadline = now + round_.grace_s

    def _complete(self, round_: Round, now: float, why: RoundInput) -> None:
        round_.take(why)
        round_.completed_at = now
