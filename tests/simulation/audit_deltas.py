"""No optimizer step and no anchor goes into the state of a run twice."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.audit import Sent, require
from yeto_syncer.core.jobs import Link


@dataclass(frozen=True, slots=True)
class Taken:
    """A push that was accepted, for its own round or a later one, and the generation that it came from."""

    sent: Sent
    link: Link


class Works:
    """Which optimizer steps are in the state of the run, over all processes: none of them twice.

    It knows what real learners have computed, so it sees through every redial and restart.
    """

    def __init__(self) -> None:
        self._log: list[tuple[int, int, tuple[int, ...]]] = []
        self._held: dict[int, set[int]] = {}

    def resume(self, step: int) -> None:
        """A process starts from a checkpoint: what was merged after it is undone."""
        log, self._log, self._held = self._log, [], {}
        for committed, fragment, works in log:
            if committed <= step:
                self.commit(committed, fragment, works)

    def commit(self, step: int, fragment: int, works: tuple[int, ...]) -> None:
        held = self._held.setdefault(fragment, set())
        twice = held.intersection(works)
        require(not twice, f"optimizer steps {sorted(twice)[:5]} are merged a second time, in step {step}")
        require(len(set(works)) == len(works), f"step {step} holds an optimizer step twice")
        held.update(works)
        self._log.append((step, fragment, works))


class Anchors:
    """The anchors that one process has merged a delta of (revision 2, 1.3).

    It knows only what pushes say, so it holds whatever learners do: one connection alone may use an anchor,
    and nobody once a delta of it was carried.
    """

    def __init__(self) -> None:
        self._used: dict[tuple[int, int, int], tuple[Link, bool]] = {}

    def commit(self, step: int, fragment: int, taken: Taken) -> None:
        base = taken.sent.push.base_version
        anchor = (taken.link.learner_id, fragment, base)
        link, carried = self._used.get(anchor, (taken.link, False))
        require(link == taken.link, f"the anchor {base} of {fragment} is merged from {link} and {taken.link}")
        require(not carried, f"the anchor {base} of {fragment} is merged again after a carry from {link}")
        self._used[anchor] = (link, taken.sent.push.global_step != step)
