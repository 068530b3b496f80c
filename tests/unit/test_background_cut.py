"""A checkpoint that is written while the state goes on: a copy-on-write cut, with the bytes of its moment."""

from __future__ import annotations

import io
import threading
import weakref

import numpy as np
import pytest

from tests.unit.snapshot_samples import cut, file_bytes
from yeto_proto._generated.errors import BadArgument
from yeto_proto.files import FragmentState, Snapshot, write_to

NUMELS = (1000, 2000, 500, 1500)
WAIT_S = 120.0


class Gate(io.BytesIO):
    """A file that takes bytes up to a limit and then lets its writer wait until it is opened."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.reached = threading.Event()
        self.opened = threading.Event()

    def write(self, data: object) -> int:
        if self.tell() >= self._limit and not self.opened.is_set():
            self.reached.set()
            assert self.opened.wait(WAIT_S)
        return super().write(data)  # type: ignore[arg-type]  # bytes or a view of an array


class State:
    """Fragments as the coordinator's model keeps them: a commit puts new arrays in the place of the old."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.fragments = list(snapshot.fragments)
        self.old = [weakref.ref(fragment.params) for fragment in self.fragments]

    def commit(self, number: int) -> None:
        before = self.fragments[number]
        self.fragments[number] = FragmentState(
            before.version + len(self.fragments), before.params * 2, before.momentum * 2
        )

    def kept(self) -> list[int]:
        """Fragments whose arrays of before are still in memory."""
        return [number for number, old in enumerate(self.old) if old() is not None]


@pytest.mark.parametrize("reached", range(5))
def test_a_commit_keeps_only_what_the_writer_has_not_reached(reached: int) -> None:
    """The memory beyond the state is at most the fragments that are still to be written, each once."""
    made = cut(numels=NUMELS)
    expected = file_bytes(made)
    behind = 49 + sum(16 + 8 * numel for numel in NUMELS[:reached])
    gate = Gate(behind)
    state = State(made)
    writing = Snapshot(
        made.version_tag,
        made.iso_backend,
        made.fingerprint,
        made.global_step,
        list(made.fragments),
        made.ledger,
        made.contract,
    )
    del made
    thread = threading.Thread(target=lambda: write_to(gate, writing, consume=True))
    thread.start()
    assert gate.reached.wait(WAIT_S)
    for number in range(len(NUMELS)):
        state.commit(number)
    assert state.kept() == list(range(reached, len(NUMELS)))
    gate.opened.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert gate.getvalue() == expected  # the bytes of a write that nothing disturbed
    assert state.kept() == []


def test_only_a_list_can_be_emptied() -> None:
    made = cut(numels=NUMELS)
    frozen = Snapshot(
        made.version_tag,
        made.iso_backend,
        made.fingerprint,
        made.global_step,
        tuple(made.fragments),
        made.ledger,
        made.contract,
    )
    with pytest.raises(BadArgument, match="list"):
        write_to(io.BytesIO(), frozen, consume=True)
    assert np.array_equal(frozen.fragments[0].params, made.fragments[0].params)
