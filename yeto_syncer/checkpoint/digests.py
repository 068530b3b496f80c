"""`yeto-checkpoint hash`: SHA-256 of a file, and of what it holds whatever stands around it.

The files carry no checksum, so a digest that is kept elsewhere is what proves a copy. `params` is taken over
the little-endian f32 parameters of all fragments in order: a checkpoint and the final state of one run agree
in it, and so do V1, V2 and V3 files of one state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from yeto_proto.files import PIECE_BYTES, FinalStateReader, Progress, SnapshotReader
from yeto_syncer.checkpoint.contents import Kind, kind_of, opened


@dataclass(frozen=True, slots=True)
class Digests:
    """Hexadecimal digests. Per fragment those of its arrays; `momentum` is None for a final state."""

    file: str
    params: str | None
    momentum: str | None
    fragments: tuple[tuple[str, str | None], ...]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "file": self.file,
            "params": self.params,
            "momentum": self.momentum,
            "fragments": [
                {"id": number, "params": params, "momentum": momentum}
                for number, (params, momentum) in enumerate(self.fragments)
            ],
        }

    def lines(self) -> list[str]:
        """For people: digest first, as in the output of sha256sum."""
        named = [(self.file, "file"), (self.params, "params"), (self.momentum, "momentum")]
        for number, (params, momentum) in enumerate(self.fragments):
            named += [(params, f"fragment {number} params"), (momentum, f"fragment {number} momentum")]
        return [f"{digest}  {name}" for digest, name in named if digest is not None]


def digests(path: Path, progress: Progress | None = None) -> Digests:
    """Read a file twice: as bytes and by its parts. Raises NotAFileError, OSError and the errors of its
    reader."""
    with opened(path) as stream:
        kind = kind_of(path, stream)
        whole = hashlib.sha256()
        buffer = memoryview(bytearray(PIECE_BYTES))
        while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # `opened` gives a raw file
            whole.update(buffer[:count])
        stream.seek(0)
        if kind is Kind.MARKER:
            return Digests(whole.hexdigest(), None, None, ())
        if kind is Kind.FINAL_STATE:
            return _final_state(stream, whole.hexdigest(), progress)
        return _snapshot(stream, whole.hexdigest(), progress)


def _snapshot(stream: BinaryIO, whole: str, progress: Progress | None) -> Digests:
    reader = SnapshotReader(stream, progress=progress)
    params, momentum = hashlib.sha256(), hashlib.sha256()
    fragments = []
    for fragment in reader.fragments():
        own = hashlib.sha256(), hashlib.sha256()
        for piece in fragment.params_pieces():
            params.update(piece.data)
            own[0].update(piece.data)
        for piece in fragment.momentum_pieces():
            momentum.update(piece.data)
            own[1].update(piece.data)
        fragments.append((own[0].hexdigest(), own[1].hexdigest()))
    for _ in reader.ledger_pieces():
        pass
    reader.trailer()
    return Digests(whole, params.hexdigest(), momentum.hexdigest(), tuple(fragments))


def _final_state(stream: BinaryIO, whole: str, progress: Progress | None) -> Digests:
    params = hashlib.sha256()
    fragments = []
    for fragment in FinalStateReader(stream, progress=progress).fragments():
        own = hashlib.sha256()
        for piece in fragment.params_pieces():
            params.update(piece.data)
            own.update(piece.data)
        fragments.append((own.hexdigest(), None))
    return Digests(whole, params.hexdigest(), None, tuple(fragments))
