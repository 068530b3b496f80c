"""Writing snapshots to a binary stream: arrays go out as they are, in pieces, without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, Final

import numpy as np

from yeto_proto._generated.constants import HASH_BYTES
from yeto_proto._generated.errors import BadArgument, WrongState
from yeto_proto._generated.files import (
    ARRAYS_PER_FRAGMENT,
    COUNT,
    F32,
    FRAGMENT,
    LEDGER_ENTRY,
    MAGIC,
    MAGICS,
    PREFIX_BYTES,
    PREFIXES,
    TRAILERS,
    U32_MAX,
    U64_MAX,
    SnapshotVersion,
)

from ._stream import Progress, Sink
from .model import F32Array, FragmentState, LedgerEntry, Snapshot, SnapshotHead, Trailer

_KIND: Final = "snapshot"


def snapshot_bytes(
    version: SnapshotVersion, numels: Iterable[int], ledger_entries: int, trailer: Trailer
) -> int:
    """Exact length of a snapshot with these contents."""
    fragments = sum(FRAGMENT.sizeof() + ARRAYS_PER_FRAGMENT * F32.itemsize * numel for numel in numels)
    ledger = COUNT.sizeof() + LEDGER_ENTRY.itemsize * ledger_entries
    return int(PREFIX_BYTES[version] + COUNT.sizeof() + fragments + ledger + trailer.form)


class SnapshotWriter:
    """Writes one snapshot front to back: the head at once, then each fragment, then `finish`.

    A fragment is written whole (`fragment`) or piece by piece (`begin_fragment`, `write_params` until all of
    them are there, `write_momentum` likewise), so that a file larger than memory can be copied.

    size, progress: `progress` is called with (bytes done, size) after each piece.

    Raises BadArgument for values that the format cannot hold, WrongState for calls out of order.  Errors of
    the stream pass through.
    """

    def __init__(
        self, stream: BinaryIO, head: SnapshotHead, *, size: int = 0, progress: Progress | None = None
    ) -> None:
        self.head = head
        self._sink = Sink(stream, size, progress)
        self._begun = 0
        self._left = [0] * ARRAYS_PER_FRAGMENT  # values that the current fragment still misses, by array
        fields = _prefix_fields(head)
        self._sink.write(
            MAGIC.build(MAGICS[head.version])
            + PREFIXES[head.version].build(fields)
            + COUNT.build(_fits("fragment_count", head.num_fragments, U32_MAX, least=1))
        )

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._sink.offset

    def fragment(self, version: int, params: F32Array, momentum: F32Array) -> None:
        """Write a whole fragment from two float32 arrays of equal size."""
        if params.size != momentum.size:
            raise BadArgument(
                frame=_KIND, field="momentum", limit=params.size, seen=momentum.size, detail="another size"
            )
        self.begin_fragment(version, params.size)
        self.write_params(params)
        self.write_momentum(momentum)

    def begin_fragment(self, version: int, numel: int) -> None:
        """Write the head of the next fragment."""
        if any(self._left):
            raise WrongState(frame=_KIND, detail=f"fragment {self._begun - 1} is not complete")
        if self._begun == self.head.num_fragments:
            raise WrongState(frame=_KIND, detail=f"all {self._begun} fragments are written")
        head = {
            "version": _fits("version", version, U64_MAX),
            "numel": _fits("numel", numel, U64_MAX, least=1),
        }
        self._sink.write(FRAGMENT.build(head))
        self._begun += 1
        self._left = [numel] * ARRAYS_PER_FRAGMENT

    def write_params(self, piece: F32Array) -> None:
        """Write the next values of the current fragment's parameters."""
        self._write(0, piece)

    def write_momentum(self, piece: F32Array) -> None:
        """Write the next values of the current fragment's momentum, after all parameters."""
        self._write(1, piece)

    def finish(self, ledger: Mapping[int, LedgerEntry], trailer: Trailer) -> None:
        """Write the ledger, by ascending learner id, and the trailer."""
        if any(self._left) or self._begun != self.head.num_fragments:
            raise WrongState(frame=_KIND, detail=f"only {self._begun} of {self.head.num_fragments} fragments")
        self._sink.write(COUNT.build(_fits("ledger_count", len(ledger), U32_MAX)) + _ledger_bytes(ledger))
        self._sink.write(_trailer_bytes(trailer, self.head.fingerprint))

    def _write(self, array: int, piece: F32Array) -> None:
        if any(self._left[:array]) or piece.size > self._left[array]:
            raise WrongState(frame=_KIND, detail=f"{piece.size} values do not fit here; left {self._left}")
        if piece.dtype != F32 or not piece.flags.c_contiguous:
            raise BadArgument(
                frame=_KIND, field="params", limit="contiguous float32", seen=f"{piece.dtype} {piece.strides}"
            )
        self._sink.write(piece)
        self._left[array] -= piece.size


def write_to(
    stream: BinaryIO, snapshot: Snapshot, *, progress: Progress | None = None, consume: bool = False
) -> int:
    """Write a whole snapshot in its own version and with its own trailer; return the number of bytes.

    consume: empty the list `snapshot.fragments`, each fragment as soon as it is written, so that the memory
    of what somebody has replaced meanwhile is free at once.
    """
    trailer = snapshot.actual_trailer()
    size = snapshot_bytes(snapshot.version_tag, snapshot.numels, len(snapshot.ledger), trailer)
    writer = SnapshotWriter(stream, snapshot.head, size=size, progress=progress)
    for fragment in _drained(snapshot) if consume else snapshot.fragments:
        writer.fragment(fragment.version, fragment.params, fragment.momentum)
        del fragment
    writer.finish(snapshot.ledger, trailer)
    return writer.offset


def _drained(snapshot: Snapshot) -> Iterator[FragmentState]:
    fragments = snapshot.fragments
    if not isinstance(fragments, list):
        raise BadArgument(frame=_KIND, field="fragments", limit="a list", seen=type(fragments).__name__)
    fragments.reverse()
    while fragments:
        yield fragments.pop()


def _prefix_fields(head: SnapshotHead) -> dict[str, object]:
    fields: dict[str, object] = {"global_step": _fits("global_step", head.global_step, U64_MAX)}
    wanted = [field.name for field in PREFIXES[head.version].subcons]
    if "iso_backend" in wanted:
        if head.iso_backend is None:
            raise BadArgument(
                frame=_KIND, field="iso_backend", detail=f"{head.version.name} records a backend"
            )
        fields["iso_backend"] = int(head.iso_backend)
    if "fingerprint" in wanted:
        fields["fingerprint"] = _digest("fingerprint", head.fingerprint)
    return fields


def _ledger_bytes(ledger: Mapping[int, LedgerEntry]) -> bytes:
    entries = np.empty(len(ledger), LEDGER_ENTRY)
    for place, learner_id in enumerate(sorted(ledger)):
        entry = ledger[learner_id]
        entries[place] = (
            _fits("ledger.learner_id", learner_id, U32_MAX),
            _fits("ledger.merges", entry.merges, U64_MAX),
            _fits("ledger.steps", entry.steps, U64_MAX),
            _fits("ledger.tokens", entry.tokens, U64_MAX),
        )
    return entries.tobytes()


def _trailer_bytes(trailer: Trailer, fingerprint: bytes | None) -> bytes:
    layout = TRAILERS[trailer.form]
    fields: dict[str, object] = {}
    for name in (field.name for field in layout.struct.subcons):
        if name == "tag":
            fields[name] = layout.tag
        elif name == "sweep_fragments":
            fields[name] = _fits(name, trailer.sweep_fragments or 0, U32_MAX, least=1)
        else:
            fields[name] = _digest(name, getattr(trailer, name))
    if fingerprint is not None and fields.get("fingerprint", fingerprint) != fingerprint:
        raise BadArgument(
            frame=_KIND, field="trailer.fingerprint", detail="it is not the fingerprint of the prefix"
        )
    return bytes(layout.struct.build(fields))


def _digest(name: str, value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != HASH_BYTES:
        raise BadArgument(frame=_KIND, field=name, limit=f"{HASH_BYTES} bytes", seen=value)
    return value


def _fits(name: str, value: int, most: int, *, least: int = 0) -> int:
    if not least <= value <= most:
        raise BadArgument(frame=_KIND, field=name, limit=f"{least}..{most}", seen=value)
    return value
