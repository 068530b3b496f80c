"""When a syncer that was dialled again seems to have no parameters.

A syncer sends every fragment that it has to a new generation. One that died before its first checkpoint comes
back with none, waits for INIT from learner 0, and cannot say so. All that shows is that nothing comes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Silence"]


@dataclass(slots=True)
class Silence:
    """How long the present connection, a redialled one, has brought neither a broadcast nor a pull.

    `patience`: seconds after which it is taken for one of a syncer without parameters. A syncer that has
    them, and waits for its other learners, is silent too; it ignores INIT.
    """

    patience: float
    _epoch: int | None = None
    _since: float = 0.0

    def lasts(self, now: float, epoch: int, *, silent: bool) -> bool:
        """Whether the patience is over. `epoch` tells connections apart; `silent`: it was redialled, and
        nothing has come on it until `now`.
        """
        if not silent:
            self._epoch = None
            return False
        if epoch != self._epoch:
            self._epoch, self._since = epoch, now
        return now >= self._since + self.patience
