"""`yeto-checkpoint export`: the parameters of a file as named tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from yeto_proto.files import FinalStateReader, Progress, SnapshotReader, replace_file
from yeto_proto.files.model import F32Array
from yeto_syncer.checkpoint import named
from yeto_syncer.checkpoint.contents import (
    Kind,
    NoValuesError,
    kind_of,
    opened,
    read_contents,
    read_numels,
)
from yeto_syncer.checkpoint.naming import Source, prove


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `proven` is False when the file could not prove that the layout is its own."""

    kind: str
    tensors: int
    numel: int
    global_step: int | None
    proven: bool


def export(
    path: Path, source: Source, output: Path, *, momentum: bool = False, progress: Progress | None = None
) -> Exported:
    """Write params (or momentum) of a snapshot or final state to a new `output`, whole or not at all.

    Raises NotAFileError, NoValuesError, CannotNameError, OSError, ValueError of the layout file, and the
    errors of the reader and of `prove`.
    """
    with opened(path) as stream:
        kind = kind_of(path, stream)
        if kind is Kind.MARKER or (kind is Kind.FINAL_STATE and momentum):
            raise NoValuesError(f"a {kind.value} holds no {'momentum' if momentum else 'parameters'}")
        start = stream.tell()
        step = fingerprint = None
        about = {"format": "pt", "source": kind.value, "values": "momentum" if momentum else "params"}
        if kind is Kind.SNAPSHOT:
            contents = read_contents(stream)
            numels, fingerprint = contents.numels.tolist(), contents.fingerprint
            step, name = contents.head.global_step, f"V{int(contents.head.version)} checkpoint"
            about["global_step"] = str(step)
        else:
            numels, name = read_numels(stream), "final state"
        layout = source.layout(lambda: len(numels))
        proven = prove(layout, numels, fingerprint)
        about["layout_fingerprint"] = layout.fingerprint().hex()
        tensors = [tensor for fragment in layout.fragments for tensor in fragment.tensors]
        stream.seek(start)
        pieces = _pieces(stream, kind, momentum, progress)
        form = named.FORMATS[output.suffix]
        replace_file(output, lambda target: named.copy(pieces, form(target, tensors, about)))
    return Exported(name, len(tensors), sum(numels), step, proven)


def _pieces(stream: BinaryIO, kind: Kind, momentum: bool, progress: Progress | None) -> Iterator[F32Array]:
    if kind is Kind.FINAL_STATE:
        for part in FinalStateReader(stream, progress=progress).fragments():
            yield from part.params_pieces()
        return
    for fragment in SnapshotReader(stream, progress=progress).fragments():
        yield from fragment.momentum_pieces() if momentum else fragment.params_pieces()
