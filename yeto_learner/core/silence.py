"""When a syncer that was dialled again seems to have no parameters.

A syncer sends every fragment that it has to a new generation. One that died before its first checkpoint comes
back with none, waits for INIT from learner 0, and cannot say so. All that shows is that nothing comes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Silence"]


@dataclass(slots=True)
class Silence:
    """How long the present connection, a redialled one, has brought no broadcast, no pull and no part of one.

    `patience`: seconds after which it is taken for one of a syncer without parameters. A syncer that has
    them, and waits for its other learners, is silent too; it ignores INIT.
    """

    patience: float
    _seen: tuple[int, int] | None = None
    _since: float = 0.0

    def lasts(self, now: float, epoch: int, *, silent: bool, received: int = 0) -> bool:
        """Whether the patience is over. `epoch` tells connections apart; `silent`: it was redialled, and
        no message has come on it until `now`; `received`: bytes until now, of messages that are still on
        their way too.
        """
        if not silent:
            self._seen = None
            return False
        if (epoch, received) != self._seen:
            self._seen, self._since = (epoch, received), now
        return now >= self._since + self.patience
