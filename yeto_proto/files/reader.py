"""Reading snapshots V1, V2 and V3 from a binary stream, in one pass and with bounded memory.

What can be judged on the bytes alone is judged here; what a file is compared with stands in `checks`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

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
    SnapshotVersion,
    TrailerForm,
)
from yeto_proto._generated.types import IsoBackend
from yeto_proto.errors_base import YetoError

from ._rules import broken
from ._stream import PIECE_BYTES, Progress, Source
from .model import F32Array, FragmentState, LedgerEntry, Snapshot, SnapshotHead, Trailer

_KIND: Final = "snapshot"
_VERSIONS: Final = {magic: version for version, magic in MAGICS.items()}
_LEDGER_PIECE: Final = 4096  # entries that one read takes
_SHORTEST_PREFIX: Final = min(PREFIX_BYTES.values())


class FragmentReader:
    """One fragment of a snapshot that is being read: its head, then params, then momentum, each at most once.

    What was not read when the next fragment is asked for is left out.  `start` is the first byte of its head.
    """

    def __init__(self, source: Source, fragment_id: int, start: int, version: int, numel: int) -> None:
        self.fragment_id = fragment_id
        self.start = start
        self.version = version
        self.numel = numel
        self._source = source
        self._names = [f"fragment {fragment_id} params", f"fragment {fragment_id} momentum"]
        self._done = 0  # arrays read or skipped

    def read_params(self, out: F32Array | None = None) -> F32Array:
        """The parameters (numel,) f32, into `out` when it is given.  Raises Truncated, WrongState."""
        return self._read(0, out)

    def read_momentum(self, out: F32Array | None = None) -> F32Array:
        """The momentum (numel,) f32; skips parameters that were not read.  Raises Truncated, WrongState."""
        return self._read(1, out)

    def params_pieces(self, piece: int = PIECE_BYTES // F32.itemsize) -> Iterator[F32Array]:
        """The parameters in arrays of at most `piece` values, which share one buffer: use each at once."""
        return self._pieces(0, piece)

    def momentum_pieces(self, piece: int = PIECE_BYTES // F32.itemsize) -> Iterator[F32Array]:
        """The momentum, in the manner of `params_pieces`."""
        return self._pieces(1, piece)

    def skip_rest(self) -> None:
        """Move behind this fragment."""
        while self._done < ARRAYS_PER_FRAGMENT:
            self._source.skip(self.numel * F32.itemsize, self._names[self._done])
            self._done += 1

    def _start(self, array: int) -> None:
        if array < self._done:
            raise WrongState(frame=_KIND, detail=f"{self._names[array]} were read already")
        while self._done < array:
            self._source.skip(self.numel * F32.itemsize, self._names[self._done])
            self._done += 1
        # What is left of the fragment must be there before an array of its size is made.
        self._source.need((ARRAYS_PER_FRAGMENT - array) * self.numel * F32.itemsize, self._names[array])
        self._done = array + 1

    def _read(self, array: int, out: F32Array | None) -> F32Array:
        if out is not None and (out.dtype != F32 or out.size != self.numel or not out.flags.c_contiguous):
            limit = f"a contiguous float32 array of {self.numel} values"
            raise BadArgument(field="out", limit=limit, seen=f"{out.dtype} of shape {out.shape}")
        self._start(array)
        target = np.empty(self.numel, F32) if out is None else out
        self._source.read_into(target, self._names[array])
        return target

    def _pieces(self, array: int, piece: int) -> Iterator[F32Array]:
        self._start(array)
        left = self.numel
        buffer = np.empty(min(piece, left), F32)
        while left:
            part = buffer[:left]
            self._source.read_into(part, self._names[array])
            left -= part.size
            yield part


class SnapshotReader:
    """Reads one snapshot front to back: `head`, then `fragments()`, then `ledger()`, then `trailer()`.

    stream: a binary stream at the snapshot's first byte, best unbuffered.
    size: bytes from there to the end; needed only for streams that cannot seek.
    progress: called with (bytes done, bytes in all).

    The constructor reads the head.  Raises Truncated (naming what, where and how many bytes), BadFileMagic,
    BackendUnknown (a backend number that does not exist) and BadFragmentCount.
    """

    def __init__(
        self, stream: BinaryIO, *, size: int | None = None, progress: Progress | None = None
    ) -> None:
        self._source = Source(stream, _KIND, size=size, progress=progress)
        self._fragment: FragmentReader | None = None
        self._given = 0
        self._ledger: dict[int, LedgerEntry] | None = None
        prefix = _read_prefix(self._source)
        count = int(COUNT.parse(self._source.read(COUNT.sizeof(), "fragment count")))
        if not count:
            raise broken("snapshot.fragment_count.must", offset=self._source.offset - COUNT.sizeof(), seen=0)
        self._source.need(count * FRAGMENT.sizeof(), f"{count} fragments")
        self.head = SnapshotHead(*prefix, count)

    @property
    def size(self) -> int:
        """Bytes of the whole snapshot."""
        return self._source.size

    @property
    def offset(self) -> int:
        """Bytes read or skipped so far."""
        return self._source.offset

    def fragments(self) -> Iterator[FragmentReader]:
        """The fragments in order.  Raises Truncated, and BadNumel for a fragment of no values."""
        while self._given < self.head.num_fragments:
            yield self._next_fragment()

    def ledger(self) -> dict[int, LedgerEntry]:
        """What each learner contributed, by learner id; skips fragments that were not read.

        Raises DuplicateLedger for an id that occurs twice, Truncated when the count promises too much.
        """
        if self._ledger is None:
            self._ledger = self._read_ledger()
        return self._ledger

    def ledger_pieces(self) -> Iterator[npt.NDArray[np.void]]:
        """The ledger in arrays of `LEDGER_ENTRY`, which share one buffer: use each at once.

        In place of `ledger`, for a ledger larger than memory; nobody looks for ids that occur twice then.
        Raises Truncated when the count promises too much.
        """
        for _ in self.fragments():
            pass
        if self._fragment is not None:
            self._fragment.skip_rest()
        count = int(COUNT.parse(self._source.read(COUNT.sizeof(), "ledger count")))
        self._source.need(count * LEDGER_ENTRY.itemsize, f"ledger of {count} entries")
        buffer = np.empty(min(count, _LEDGER_PIECE), LEDGER_ENTRY)
        while count:
            entries = buffer[:count]
            self._source.read_into(entries, "ledger")
            count -= entries.size
            yield entries
        if self._ledger is None:
            self._ledger = {}

    def trailer(self) -> Trailer:
        """What stands behind the ledger.  Raises BadTrailer for a length, tag or content that no form has."""
        self.ledger()
        return self._read_trailer()

    def read(self, judge: Callable[[FragmentReader], None] | None = None) -> Snapshot:
        """The whole snapshot, with read-only arrays; for a reader of which nothing else was read yet.

        `judge` sees each fragment before its arrays are made, and may raise.
        """
        fragments = []
        for fragment in self.fragments():
            if judge is not None:
                judge(fragment)
            fragments.append(_state(fragment))
        ledger = self.ledger()
        trailer = self.trailer()
        head = self.head
        return Snapshot(
            head.version,
            head.iso_backend,
            head.fingerprint,
            head.global_step,
            fragments,
            ledger,
            trailer.contract,
            trailer,
        )

    def _next_fragment(self) -> FragmentReader:
        if self._fragment is not None:
            self._fragment.skip_rest()
        number = self._given
        start = self._source.offset
        found = FRAGMENT.parse(self._source.read(FRAGMENT.sizeof(), f"fragment {number} head"))
        version, numel = int(found.version), int(found.numel)
        if numel < 1:
            raise broken(
                "snapshot.numel.must", offset=start, limit=1, seen=numel, detail=f"fragment {number}"
            )
        self._fragment = FragmentReader(self._source, number, start, version, numel)
        self._given += 1
        return self._fragment

    def _read_ledger(self) -> dict[int, LedgerEntry]:
        ledger: dict[int, LedgerEntry] = {}
        for entries in self.ledger_pieces():
            start = self._source.offset - entries.nbytes - len(ledger) * LEDGER_ENTRY.itemsize
            for learner_id, merges, steps, tokens in entries.tolist():
                if learner_id in ledger:
                    raise broken(
                        "snapshot.ledger.unique",
                        offset=start + len(ledger) * LEDGER_ENTRY.itemsize,
                        seen=learner_id,
                    )
                ledger[learner_id] = LedgerEntry(merges, steps, tokens)
        return ledger

    def _read_trailer(self) -> Trailer:
        start, left = self._source.offset, self._source.remaining
        try:
            form = TrailerForm(left)
        except ValueError:
            raise self._bad_trailer(start, f"{left} bytes are left after the ledger", left) from None
        layout = TRAILERS[form]
        found = layout.struct.parse(self._source.read(left, "trailer"))
        if layout.tag is not None and found.tag != layout.tag:
            at = start + HASH_BYTES
            raise self._bad_trailer(
                at, f"a trailer of {left} bytes has another tag", f"{found.tag:#010x}", f"{layout.tag:#010x}"
            )
        fingerprint = found.get("fingerprint")
        known = self.head.fingerprint
        if known is not None and fingerprint not in (None, known):
            raise self._bad_trailer(
                start, "its fingerprint is not that of the prefix", fingerprint, known.hex()
            )
        sweep = found.get("sweep_fragments")
        if sweep == 0:
            raise self._bad_trailer(start, "a policy sweep of no fragments", 0, 1)
        return Trailer(form, fingerprint, found.get("contract"), sweep)

    @staticmethod
    def _bad_trailer(offset: int, detail: str, seen: object, limit: object = None) -> YetoError:
        return broken("snapshot.trailer.must", offset=offset, detail=detail, seen=seen, limit=limit)


def read_global_step(stream: BinaryIO) -> int:
    """The global step of a snapshot, from its prefix alone; nothing behind it is looked at.

    Raises Truncated, BadFileMagic, BackendUnknown.
    """
    data = stream.read(max(PREFIX_BYTES.values()))
    if len(data) < _SHORTEST_PREFIX:
        raise broken(
            "snapshot.complete",
            offset=len(data),
            limit=_SHORTEST_PREFIX,
            seen=len(data),
            detail="truncated checkpoint header",
        )
    return _read_prefix(Source(io.BytesIO(data), _KIND))[3]


def _read_prefix(source: Source) -> tuple[SnapshotVersion, IsoBackend | None, bytes | None, int]:
    magic = int(MAGIC.parse(source.read(MAGIC.sizeof(), "magic")))
    version = _VERSIONS.get(magic)
    if version is None:
        known = ", ".join(f"{each:#010x}" for each in _VERSIONS)
        raise broken(
            "snapshot.magic.must",
            offset=0,
            limit=known,
            seen=f"{magic:#010x}",
        )
    start = source.offset
    layout = PREFIXES[version]
    found = layout.parse(source.read(layout.sizeof(), f"{version.name} prefix"))
    backend = found.get("iso_backend")
    try:
        known_backend = None if backend is None else IsoBackend(backend)
    except ValueError:
        raise broken("snapshot.iso_backend.must", offset=start, limit="0 or 1", seen=backend) from None
    return version, known_backend, found.get("fingerprint"), int(found.global_step)


def _state(fragment: FragmentReader) -> FragmentState:
    params, momentum = fragment.read_params(), fragment.read_momentum()
    # A commit replaces arrays and never changes them, so that they can be shared without a copy.
    params.flags.writeable = momentum.flags.writeable = False
    return FragmentState(fragment.version, params, momentum)
