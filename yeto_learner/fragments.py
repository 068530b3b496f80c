"""The values of a learner, fragment by fragment: the user's parameters and the anchors beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from yeto_proto import dtypes
from yeto_proto._generated.errors import NonFinite
from yeto_proto._generated.messages import Buffer
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout

from .core.modes import InstallMode
from .core.records import BcastFragment, FinalFragment
from .core.values import F32, Anchor, Span, blocks, install, overwrite, write_delta
from .errors import NonFiniteParameterError, ProtocolError
from .parameters import Parameters
from .record import SavedAnchor

__all__ = ["FragmentValues"]

ANCHOR_STEP: Final = 1 << 18  # values of an anchor that are converted at a time


class FragmentValues:
    """Reads and writes whole fragments.

    push_dtype: of the session; broadcasts and INIT of a q4 session are bf16.  anchor_dtype: how anchors are
    kept.  alpha: the share of the local value that a broadcast leaves.
    """

    def __init__(
        self, parameters: Parameters, layout: Layout, push_dtype: Dtype, anchor_dtype: Dtype, alpha: float
    ) -> None:
        self.parameters = parameters
        self._push_dtype, self._anchor_dtype, self._alpha = push_dtype, anchor_dtype, alpha
        self._wire_dtype = Dtype.F32 if push_dtype is Dtype.F32 else Dtype.BF16
        self._numels = [fragment.numel for fragment in layout.fragments]
        self._spans: list[list[Span]] = []
        self._anchors: dict[int, Anchor] = {}
        for fragment in layout.fragments:
            spans, first = [], 0
            for tensor in fragment.tensors:
                spans.append(Span(tensor.name, first, tensor.numel))
                first += tensor.numel
            self._spans.append(spans)

    @property
    def num_fragments(self) -> int:
        return len(self._spans)

    def numel(self, fragment_id: int) -> int:
        return self._numels[fragment_id]

    def install(self, update: BcastFragment, mode: InstallMode) -> None:
        """Install a broadcast: the local values by `mode`, and its raw values as the anchor.

        Raises ProtocolError, before anything is written, when it holds a value that is not finite.
        """
        number = update.fragment_id
        if mode is not InstallMode.CONFIRM:
            _must_be_finite(self._wire_dtype, update.data, f"version {update.version} of fragment {number}")
        anchor = self._anchors.get(number)
        if anchor is None:
            anchor = self._anchors[number] = Anchor(self._numels[number], self._anchor_dtype)
        install(
            mode, self._spans[number], self.parameters, anchor, update.data, self._wire_dtype, self._alpha
        )
        self.parameters.flush()

    def read_anchor(self, fragment_id: int, out: F32) -> None:
        """out = anchor."""
        anchor = self._anchors[fragment_id]
        for start in range(0, anchor.numel, ANCHOR_STEP):
            count = min(ANCHOR_STEP, anchor.numel - start)
            out[start : start + count] = anchor.read(start, count)

    def write_delta(self, fragment_id: int, out: F32) -> None:
        """out = local - anchor.  Raises NonFiniteParameterError that names the tensor.

        Progress that overflows in the session's dtype (bf16 is coarser than f32) counts as not finite.
        """
        self._write_delta(
            fragment_id, self._anchors[fragment_id], out, "its progress since the last broadcast"
        )

    def _write_delta(self, fragment_id: int, base: Anchor, out: F32, what: str) -> None:
        name = write_delta(self._spans[fragment_id], self.parameters, base, out, self._push_dtype)
        self.parameters.flush()
        if name is not None:
            raise NonFiniteParameterError(name, f"{what}, sent as {self._push_dtype.name.lower()},")

    def write_raw(self, update: BcastFragment) -> None:
        """Write a broadcast over the local values, and keep no anchor.  Raises ProtocolError as `install`."""
        number = update.fragment_id
        _must_be_finite(self._wire_dtype, update.data, f"version {update.version} of fragment {number}")
        width = dtypes.encoded_bytes(self._wire_dtype, 1)
        data = memoryview(update.data)
        for name, start, first, count in blocks(self._spans[number]):
            part = data[first * width : (first + count) * width]
            self.parameters.write(name, start, dtypes.decode(self._wire_dtype, part, count))
        self.parameters.flush()

    def delta_from(self, update: BcastFragment) -> F32:
        """local - the values of a broadcast, which becomes no anchor.  Raises NonFiniteParameterError."""
        number = update.fragment_id
        base = Anchor(self._numels[number], self._wire_dtype)
        base.load(0, base.numel, self._wire_dtype, update.data)
        out = np.empty(base.numel, np.float32)
        self._write_delta(number, base, out, "its difference to the resumed global")
        return out

    def init_parts(self, fragment_id: int) -> Iterator[Buffer]:
        """The initial values of a fragment in wire bytes, a block at a time.

        Raises NonFiniteParameterError for a value that is not finite, or that overflows in bf16.
        """
        for name, start, _, count in blocks(self._spans[fragment_id]):
            part = self._initial(name, self.parameters.read(name, start, start + count))
            # The queue may still hold the part when the parameters change again, so views of them must not
            # leave.
            yield bytes(part) if self._wire_dtype is Dtype.F32 else part
        self.parameters.flush()

    def read_initial(self, fragment_id: int, out: F32) -> None:
        """out = the local values, to be sent as initial ones.  Raises as `init_parts`."""
        for name, start, first, count in blocks(self._spans[fragment_id]):
            values = self.parameters.read(name, start, start + count)
            self._initial(name, values)
            out[first : first + count] = values
        self.parameters.flush()

    def _initial(self, name: str, values: F32) -> Buffer:
        part = dtypes.encode(self._wire_dtype, values)
        try:
            dtypes.check_finite(self._wire_dtype, part)
        except NonFinite as error:
            what = f"a value sent as {self._wire_dtype.name.lower()}"
            raise NonFiniteParameterError(name, what) from error
        return part

    def check_finite(self) -> None:
        """Raise NonFiniteParameterError if a value cannot be sent as the initial one."""
        for number in range(self.num_fragments):
            for name, start, _, count in blocks(self._spans[number]):
                if not np.isfinite(self.parameters.read(name, start, start + count)).all():
                    raise NonFiniteParameterError(name, "its initial value")
        self.parameters.flush()

    def overwrite(self, finals: Sequence[FinalFragment]) -> None:
        """Write the final cut, f32, over the local values, without blending, and give up the anchors.

        A resume record that had them would take the whole way from them to the final values for local
        progress.

        Raises ProtocolError, before anything is written, when it holds a value that is not finite.
        """
        for final in finals:
            _must_be_finite(Dtype.F32, final.data, f"the final value of fragment {final.fragment_id}")
        for final in finals:
            overwrite(self._spans[final.fragment_id], self.parameters, final.data)
        self.parameters.flush()
        self._anchors.clear()

    # -- anchors of a resume record

    @property
    def anchored(self) -> set[int]:
        """The fragments that have an anchor."""
        return set(self._anchors)

    def save_anchors(self) -> dict[int, SavedAnchor]:
        """Copies of all anchors."""
        return {
            number: SavedAnchor(anchor.dtype, np.frombuffer(anchor.stored(), np.uint8).copy())
            for number, anchor in self._anchors.items()
        }

    def restore_anchors(self, anchors: Mapping[int, SavedAnchor]) -> None:
        """Take the anchors of a resume record.  Raises ValueError for one of another size."""
        for number, saved in anchors.items():
            anchor = Anchor(self._numels[number], self._anchor_dtype)
            if dtypes.encoded_bytes(saved.dtype, anchor.numel) != saved.data.nbytes:
                raise ValueError(f"the resume record's anchor of fragment {number} has the wrong size")
            for start in range(0, anchor.numel, ANCHOR_STEP):
                count = min(ANCHOR_STEP, anchor.numel - start)
                width = dtypes.encoded_bytes(saved.dtype, 1)
                part = saved.data[start * width : (start + count) * width]
                anchor.load(start, count, saved.dtype, part.data)
            self._anchors[number] = anchor


def _must_be_finite(dtype: Dtype, data: Buffer, what: str) -> None:
    try:
        dtypes.check_finite(dtype, data)
    except NonFinite as error:
        raise ProtocolError(f"{what} is not finite; nothing was written", error) from error
