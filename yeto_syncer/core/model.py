"""The global parameters: versions, f32 parameters and momentum of every fragment, and the global step.

Arrays are never written to. A commit replaces them, so that broadcasts, merges and checkpoints that still
hold the old ones share them without a copy and without a lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from yeto_proto._generated.types import IsoBackend
from yeto_proto.files.model import FragmentState, Snapshot, SnapshotVersion
from yeto_proto.session import Session
from yeto_syncer.core.effects import Versioned
from yeto_syncer.core.jobs import F32, MergeTensors
from yeto_syncer.core.ledger import Ledger


class Model:
    """State of one session. Memory grows with INIT, never by a HELLO alone."""

    def __init__(self, session: Session, resumed: Snapshot | None) -> None:
        self.session = session
        self.num_fragments = session.num_fragments
        self.global_step = 0
        self._fragments: list[FragmentState | None] = [None] * session.num_fragments
        self._missing = session.num_fragments
        self._tensors: dict[int, MergeTensors] = {}
        if resumed is not None:
            self.global_step = resumed.global_step
            self._fragments = [
                FragmentState(fragment.version, _frozen(fragment.params), _frozen(fragment.momentum))
                for fragment in resumed.fragments
            ]
            self._missing = 0

    @property
    def complete(self) -> bool:
        """True when every fragment has parameters."""
        return self._missing == 0

    def fragment_of(self, step: int) -> int:
        """The fragment of outer step t: strict round robin."""
        return (step - 1) % self.num_fragments

    def initialize(self, fragment_id: int, values: F32) -> bool:
        """Set the parameters of a fragment at version 0; False when it has some already (the first INIT
        wins)."""
        if self._fragments[fragment_id] is not None:
            return False
        momentum = _frozen(np.zeros(values.shape, np.float32))
        self._fragments[fragment_id] = FragmentState(0, _frozen(values), momentum)
        self._missing -= 1
        return True

    def commit(self, step: int, params: F32, momentum: F32) -> None:
        """Step `global_step + 1` replaces its fragment."""
        if step != self.global_step + 1:
            raise AssertionError(f"commit of step {step} after step {self.global_step}")
        self._fragments[self.fragment_of(step)] = FragmentState(step, _frozen(params), _frozen(momentum))
        self.global_step = step

    def fragment(self, fragment_id: int) -> FragmentState:
        state = self._fragments[fragment_id]
        if state is None:
            raise AssertionError(f"fragment {fragment_id} has no parameters")
        return state

    def version(self, fragment_id: int) -> int:
        return self.fragment(fragment_id).version

    @property
    def versions(self) -> tuple[int | None, ...]:
        """The version of each fragment, None where it has no parameters yet."""
        return tuple(None if state is None else state.version for state in self._fragments)

    def versioned(self, fragment_id: int) -> Versioned:
        """The fragment as a broadcast carries it."""
        state = self.fragment(fragment_id)
        return Versioned(fragment_id, state.version, state.params)

    def cut(self) -> tuple[Versioned, ...]:
        """Every fragment at its current version, in layout order."""
        return tuple(self.versioned(fragment) for fragment in range(self.num_fragments))

    def tensors(self, fragment_id: int) -> MergeTensors:
        """How the fragment splits into tensors; computed once, when its first round merges."""
        known = self._tensors.get(fragment_id)
        if known is None:
            layout = self.session.layout
            known = MergeTensors(
                layout.merge_mode(fragment_id), layout.numels(fragment_id), layout.shapes(fragment_id)
            )
            self._tensors[fragment_id] = known
        return known

    def snapshot(self, ledger: Ledger, iso_backend: IsoBackend) -> Snapshot:
        """What a checkpoint holds; the arrays are shared."""
        return Snapshot(
            version_tag=SnapshotVersion.V3,
            iso_backend=iso_backend,
            fingerprint=self.session.fingerprint,
            global_step=self.global_step,
            fragments=[self.fragment(fragment) for fragment in range(self.num_fragments)],
            ledger=ledger.snapshot(),
            contract=self.session.contract,
        )

    def final_state(self) -> tuple[F32, ...]:
        return tuple(self.fragment(fragment).params for fragment in range(self.num_fragments))


def versions(cut: Sequence[Versioned]) -> tuple[int, ...]:
    """The version of each fragment of a cut, in layout order."""
    return tuple(fragment.version for fragment in cut)


def _frozen(values: F32) -> F32:
    values.flags.writeable = False
    return values
