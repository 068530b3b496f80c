"""One delta per anchor: which anchors of a learner have gone into the state already (revision 2, 1.3).

A delta is counted from an anchor, a version of a fragment that the learner was sent. A learner that redials
may send it again, together with what it did since; merging both would count the first part twice. On one
connection several answers from one anchor are allowed, since asynchronous learners work so, until one of them
was carried into a later round. Nothing of this survives a restart of the syncer.
"""

from __future__ import annotations

from yeto_syncer.core.jobs import Link

WORD = 4096  # bits of one entry: 4,096 rounds of a fragment in about 600 bytes


class _Versions:
    """A set of versions of one fragment, a bit for each of its rounds."""

    __slots__ = ("_period", "_words")

    def __init__(self, period: int) -> None:
        self._period = period
        self._words: dict[int, int] = {}

    def _place(self, version: int) -> tuple[int, int]:
        # Versions of a fragment lie one period apart. What lies between two of them was never sent to anybody
        # and counts as the next one.
        return divmod(-(-version // self._period), WORD)

    def add(self, version: int) -> None:
        word, bit = self._place(version)
        self._words[word] = self._words.get(word, 0) | 1 << bit

    def update(self, other: _Versions) -> None:
        for word, bits in other._words.items():
            self._words[word] = self._words.get(word, 0) | bits

    def __contains__(self, version: int) -> bool:
        word, bit = self._place(version)
        return bool(self._words.get(word, 0) >> bit & 1)


class Anchors:
    """The anchors whose delta was merged by this process. Bounded by one bit a merge, about."""

    def __init__(self, num_fragments: int) -> None:
        self._period = num_fragments
        # (learner, fragment): closed to every connection.
        self._closed: dict[tuple[int, int], _Versions] = {}
        # learner: generation: fragment: open to that live connection alone.
        self._own: dict[int, dict[int, dict[int, _Versions]]] = {}

    def held(self, link: Link, fragment_id: int, base_version: int) -> bool:
        """True when a delta of this anchor was merged and this connection may not send another one."""
        closed = self._closed.get((link.learner_id, fragment_id))
        if closed is not None and base_version in closed:
            return True
        return any(
            generation != link.generation and fragment_id in own and base_version in own[fragment_id]
            for generation, own in self._own.get(link.learner_id, {}).items()
        )

    def merged(self, link: Link, fragment_id: int, base_version: int, *, carried: bool, live: bool) -> None:
        """A delta was merged, carried or by its own round; `live` tells whether its connection still is."""
        if carried or not live:
            self._closed_for(link.learner_id, fragment_id).add(base_version)
            return
        own = self._own.setdefault(link.learner_id, {}).setdefault(link.generation, {})
        own.setdefault(fragment_id, _Versions(self._period)).add(base_version)

    def gone(self, link: Link) -> None:
        """A connection ended. No later one may use its anchors again."""
        generations = self._own.get(link.learner_id, {})
        for fragment_id, versions in generations.pop(link.generation, {}).items():
            self._closed_for(link.learner_id, fragment_id).update(versions)
        if not generations:
            self._own.pop(link.learner_id, None)

    def _closed_for(self, learner_id: int, fragment_id: int) -> _Versions:
        return self._closed.setdefault((learner_id, fragment_id), _Versions(self._period))
