"""The final-state file: the parameters of every fragment, f32, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np

from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.files import COUNT, F32, NUMEL, U32_MAX

from ._rules import broken
from ._stream import Progress, Sink, Source
from .model import F32Array
from .paths import FilePath, open_raw, replace_file

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


def read_final_state_from(
    stream: BinaryIO, *, size: int | None = None, progress: Progress | None = None
) -> list[F32Array]:
    """The parameters (numel,) f32 of each fragment.

    Raises Truncated (naming what, where and how many bytes), TrailingBytes, BadFragmentCount, BadNumel.
    """
    source = Source(stream, _KIND, size=size, progress=progress)
    fragments = list(_fragments(source))
    source.at_end()
    return fragments


def _fragments(source: Source) -> Iterator[F32Array]:
    count = int(COUNT.parse(source.read(COUNT.sizeof(), "fragment count")))
    if not count:
        raise broken("final_state.fragment_count.must", offset=0, seen=0)
    source.need(count * NUMEL.sizeof(), f"{count} fragments")
    for fragment in range(count):
        start = source.offset
        numel = int(NUMEL.parse(source.read(NUMEL.sizeof(), f"fragment {fragment} numel")))
        if not numel:
            raise broken("final_state.numel.must", offset=start, limit=1, seen=numel)
        what = f"fragment {fragment} params"
        source.need(numel * F32.itemsize, what)
        params = np.empty(numel, F32)
        source.read_into(params, what)
        yield params


def write_final_state(
    path: FilePath, fragments: Sequence[F32Array], *, progress: Progress | None = None
) -> None:
    """Replace the final-state file at `path` atomically and durably.  Raises OSError, BadArgument."""
    replace_file(path, lambda stream: write_final_state_to(stream, fragments, progress=progress))


def read_final_state(path: FilePath, *, progress: Progress | None = None) -> list[F32Array]:
    """Read a final-state file.  Raises OSError and the errors of `read_final_state_from`."""
    with open_raw(path) as stream:
        return read_final_state_from(stream, progress=progress)
