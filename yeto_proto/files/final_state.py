"""The final-state file: the parameters of every fragment, f32, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np

from yeto_proto._generated.errors import BadArgument, WrongState
from yeto_proto._generated.files import COUNT, F32, NUMEL, U32_MAX

from ._rules import broken
from ._stream import PIECE_BYTES, Progress, Sink, Source
from .model import F32Array
from .paths import FilePath, Passed, open_raw, replace_file

_KIND: Final = "final state"


def write_final_state_to(
    stream: BinaryIO, fragments: Sequence[F32Array], *, progress: Progress | None = None
) -> None:
    """Write the parameters of all fragments, flat float32 arrays in fragment order.  Raises BadArgument."""
    if not 1 <= len(fragments) <= U32_MAX:
        raise BadArgument(frame=_KIND, field="fragment_count", limit=f"1..{U32_MAX}", seen=len(fragments))
    for params in fragments:
        if params.dtype != F32 or not params.flags.c_contiguous or not params.size:
            limit = "contiguous float32 with values"
            raise BadArgument(frame=_KIND, field="params", limit=limit, seen=f"{params.dtype} {params.shape}")
    size = COUNT.sizeof() + sum(NUMEL.sizeof() + params.nbytes for params in fragments)
    sink = Sink(stream, size, progress)
    sink.write(COUNT.build(len(fragments)))
    for params in fragments:
        sink.write(NUMEL.build(params.size))
        sink.write(params)


class FinalStateFragment:
    """One fragment of a final state that is being read. What was not read is left out; `start` is the first
    byte of its head."""

    def __init__(self, source: Source, fragment_id: int, start: int, numel: int) -> None:
        self.fragment_id = fragment_id
        self.start = start
        self.numel = numel
        self._source = source
        self._left = numel  # values that were neither read nor skipped

    def read_params(self) -> F32Array:
        """The parameters (numel,) f32.  Raises Truncated, WrongState."""
        self._start()
        params = np.empty(self.numel, F32)
        self._source.read_into(params, self._name)
        self._left = 0
        return params

    def params_pieces(self, piece: int = PIECE_BYTES // F32.itemsize) -> Iterator[F32Array]:
        """The parameters in arrays of at most `piece` values, which share one buffer: use each at once."""
        self._start()
        buffer = np.empty(min(piece, self.numel), F32)
        while self._left:
            part = buffer[: self._left]
            self._source.read_into(part, self._name)
            self._left -= part.size
            yield part

    def skip_rest(self) -> None:
        """Move behind this fragment."""
        self._source.skip(self._left * F32.itemsize, self._name)
        self._left = 0

    @property
    def _name(self) -> str:
        return f"fragment {self.fragment_id} params"

    def _start(self) -> None:
        if self._left != self.numel:
            raise WrongState(frame=_KIND, detail=f"{self._name} were read already")
        self._source.need(self.numel * F32.itemsize, self._name)


class FinalStateReader:
    """Reads a final state front to back: `num_fragments`, then `fragments()`, with memory that does not
    depend on the file.

    stream, size, progress: as for `SnapshotReader`.

    Raises Truncated (naming what, where and how many bytes), BadFragmentCount; `fragments` also BadNumel, and
    TrailingBytes at its end.
    """

    def __init__(
        self, stream: BinaryIO, *, size: int | None = None, progress: Progress | None = None
    ) -> None:
        self._source = Source(stream, _KIND, size=size, progress=progress)
        self.num_fragments = int(COUNT.parse(self._source.read(COUNT.sizeof(), "fragment count")))
        if not self.num_fragments:
            raise broken("final_state.fragment_count.must", offset=0, seen=0)
        self._source.need(self.num_fragments * NUMEL.sizeof(), f"{self.num_fragments} fragments")

    def fragments(self) -> Iterator[FinalStateFragment]:
        """The fragments in order; once."""
        source = self._source
        for number in range(self.num_fragments):
            start = source.offset
            numel = int(NUMEL.parse(source.read(NUMEL.sizeof(), f"fragment {number} numel")))
            if not numel:
                raise broken("final_state.numel.must", offset=start, limit=1, seen=numel)
            fragment = FinalStateFragment(source, number, start, numel)
            yield fragment
            fragment.skip_rest()
        source.at_end()


def read_final_state_from(
    stream: BinaryIO, *, size: int | None = None, progress: Progress | None = None
) -> list[F32Array]:
    """The parameters (numel,) f32 of each fragment.

    Raises Truncated (naming what, where and how many bytes), TrailingBytes, BadFragmentCount, BadNumel.
    """
    reader = FinalStateReader(stream, size=size, progress=progress)
    return [fragment.read_params() for fragment in reader.fragments()]


def write_final_state(
    path: FilePath,
    fragments: Sequence[F32Array],
    *,
    progress: Progress | None = None,
    passed: Passed | None = None,
) -> None:
    """Replace the final-state file at `path` atomically and durably.  Raises OSError, BadArgument."""
    replace_file(
        path, lambda stream: write_final_state_to(stream, fragments, progress=progress), passed=passed
    )


def read_final_state(path: FilePath, *, progress: Progress | None = None) -> list[F32Array]:
    """Read a final-state file.  Raises OSError and the errors of `read_final_state_from`."""
    with open_raw(path) as stream:
        return read_final_state_from(stream, progress=progress)
