"""Snapshots on streams: round trips, hostile bytes, memory, and the pieces they are read and written in."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.snapshot_samples import CONTRACT, FINGERPRINT, cut, file_bytes, snapshots
from yeto_proto import files
from yeto_proto._generated.errors import (
    BackendUnknown,
    BadArgument,
    BadFileMagic,
    BadFragmentCount,
    BadNumel,
    BadTrailer,
    DuplicateLedger,
    Truncated,
    WrongState,
    YetoError,
)
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import (
    FragmentState,
    Snapshot,
    SnapshotHead,
    SnapshotReader,
    SnapshotVersion,
    Trailer,
    TrailerForm,
)

DATA = file_bytes(cut())
# Where things lie in DATA: two fragments of 3 and 2 values, two ledger entries, the contract trailer.
COUNT_AT, NUMEL_AT, LEDGER_AT = 45, 57, 121


def read(data: bytes) -> Snapshot:
    return SnapshotReader(io.BytesIO(data)).read()


@pytest.mark.rule("snapshot.complete")
@given(snapshot=snapshots())
def test_there_and_back(snapshot: Snapshot) -> None:
    data = file_bytes(snapshot)
    assert read(data) == snapshot
    assert files.read_global_step(io.BytesIO(data)) == snapshot.global_step
    trailer = snapshot.actual_trailer()
    assert len(data) == files.snapshot_bytes(
        snapshot.version_tag, snapshot.numels, len(snapshot.ledger), trailer
    )


@given(snapshot=snapshots(), at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_any_flipped_byte_gives_a_snapshot_or_a_yeto_error(snapshot: Snapshot, at: int, flip: int) -> None:
    data = bytearray(file_bytes(snapshot))
    data[at % len(data)] ^= flip
    try:
        found = read(bytes(data))
    except YetoError as error:
        assert "\n" not in str(error)
    else:
        assert file_bytes(found) == data or list(found.ledger) != sorted(found.ledger)


@given(data=st.binary(max_size=300), head=st.sampled_from([b"", DATA[:45], DATA[:57], DATA[:65]]))
def test_any_bytes_give_a_snapshot_or_a_yeto_error(data: bytes, head: bytes) -> None:
    for call in (read, lambda raw: files.read_global_step(io.BytesIO(raw)), files.parse_marker):
        try:
            call(head + data)
        except YetoError as error:
            assert "\n" not in str(error)


@pytest.mark.rule("snapshot.complete")
@pytest.mark.rule("snapshot.trailer.must")
@pytest.mark.parametrize("version", SnapshotVersion)
def test_every_cut_is_refused_or_a_shorter_form(version: SnapshotVersion) -> None:
    data = file_bytes(cut(version=version, trailer=Trailer(TrailerForm.CONTRACT, FINGERPRINT, CONTRACT)))
    body = len(data) - TrailerForm.CONTRACT
    for size in range(len(data)):
        if size in (body, body + 32):  # the forms without contract, without trailer
            assert read(data[:size]).contract is None
        elif size < body:
            with pytest.raises(Truncated) as caught:
                read(data[:size])
            assert caught.value.offset is not None and caught.value.offset <= size
        elif size == body + 40:  # a sweep trailer by its length, but not by its tag
            with pytest.raises(BadTrailer, match="tag"):
                read(data[:size])
        else:
            with pytest.raises(BadTrailer, match=str(size - body)):
                read(data[:size])


def test_truncation_names_what_where_and_how_much() -> None:
    with pytest.raises(Truncated, match="fragment 1 params") as caught:
        read(DATA[:110])
    error = caught.value
    assert (error.field, error.offset, error.limit, error.seen) == ("fragment 1 params", 105, 16, 5)


def test_trailing_bytes_are_counted() -> None:
    with pytest.raises(BadTrailer, match="73 bytes are left") as caught:
        read(DATA + b"12345")
    assert caught.value.seen == 73


def patched(at: int, value: int, size: int) -> bytes:
    data = bytearray(DATA)
    data[at : at + size] = value.to_bytes(size, "little")
    return bytes(data)


@pytest.mark.rule("snapshot.magic.must")
@pytest.mark.rule("snapshot.iso_backend.must")
@pytest.mark.rule("snapshot.fragment_count.must")
@pytest.mark.rule("snapshot.numel.must")
@pytest.mark.rule("snapshot.complete")
@pytest.mark.rule("snapshot.ledger.unique")
@pytest.mark.rule("snapshot.trailer.must")
@pytest.mark.parametrize(
    ("data", "rule", "error", "field", "offset"),
    [
        (patched(0, 0xD170C0DE, 4), "snapshot.magic.must", BadFileMagic, "magic", 0),
        (patched(0, 0xD1705A81, 4), "snapshot.magic.must", BadFileMagic, "magic", 0),
        (patched(4, 2, 1), "snapshot.iso_backend.must", BackendUnknown, "iso_backend", 4),
        (
            patched(COUNT_AT, 0, 4),
            "snapshot.fragment_count.must",
            BadFragmentCount,
            "num_fragments",
            COUNT_AT,
        ),
        (
            patched(COUNT_AT, 2**32 - 1, 4),
            "snapshot.complete",
            Truncated,
            "4294967295 fragments",
            COUNT_AT + 4,
        ),
        (patched(NUMEL_AT, 0, 8), "snapshot.numel.must", BadNumel, "numel", 49),
        (patched(NUMEL_AT, 2**64 - 1, 8), "snapshot.complete", Truncated, "fragment 0 params", 65),
        (patched(NUMEL_AT, 2**61, 8), "snapshot.complete", Truncated, "fragment 0 params", 65),
        (
            patched(LEDGER_AT, 2**32 - 1, 4),
            "snapshot.complete",
            Truncated,
            "ledger of 4294967295 entries",
            LEDGER_AT + 4,
        ),
        (
            patched(LEDGER_AT + 4, 3, 4),
            "snapshot.ledger.unique",
            DuplicateLedger,
            "learner_id",
            LEDGER_AT + 4 + 28,
        ),
        (patched(len(DATA) - 68, 0xFF, 1), "snapshot.trailer.must", BadTrailer, "trailer", len(DATA) - 68),
        (
            patched(len(DATA) - 36, 0x50535750, 4),
            "snapshot.trailer.must",
            BadTrailer,
            "trailer",
            len(DATA) - 36,
        ),
    ],
)
def test_each_wrong_field_is_named(
    data: bytes, rule: str, error: type[YetoError], field: str, offset: int
) -> None:
    with pytest.raises(error) as caught:
        read(data)
    assert (caught.value.rule, caught.value.field, caught.value.offset) == (rule, field, offset)
    assert caught.value.frame == "snapshot"


def test_a_sweep_of_no_fragments_is_refused() -> None:
    data = bytearray(file_bytes(cut(trailer=Trailer(TrailerForm.SWEEP, FINGERPRINT, CONTRACT, 7))))
    assert read(bytes(data)).actual_trailer().sweep_fragments == 7
    data[-36:-32] = bytes(4)
    with pytest.raises(BadTrailer, match="no fragments"):
        read(bytes(data))


@pytest.mark.parametrize("at", [NUMEL_AT, LEDGER_AT])
def test_a_large_promise_costs_no_memory(at: int) -> None:
    data = patched(at, 2**40 // 8 if at == NUMEL_AT else 2**32 - 1, 8 if at == NUMEL_AT else 4)
    tracemalloc.start()
    try:
        with pytest.raises(Truncated):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", range(12))
def test_a_short_header_is_truncated_whatever_its_magic(size: int) -> None:
    with pytest.raises(Truncated, match="truncated checkpoint header"):
        files.read_global_step(io.BytesIO(bytes(size)))


def test_the_step_needs_only_the_prefix() -> None:
    assert files.read_global_step(io.BytesIO(DATA[:45])) == 5
    for size in range(12, 45):
        with pytest.raises(Truncated):
            files.read_global_step(io.BytesIO(DATA[:size]))


# --------------------------------------------------------------------------------------------- pieces


class Trickle(io.RawIOBase):
    """Cannot seek; moves at most 7 bytes a call."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(7, len(buffer), len(self.data))
        buffer[:count] = self.data[:count]
        del self.data[:count]
        return count

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data[:7]
        return min(7, len(data))


def test_streams_that_trickle_and_cannot_seek() -> None:
    assert SnapshotReader(Trickle(DATA), size=len(DATA)).read() == cut_with_trailer()
    sink = Trickle()
    files.write_to(sink, cut())
    assert sink.data == DATA
    reader = SnapshotReader(Trickle(DATA), size=len(DATA))
    assert set(reader.ledger()) == {0, 3}  # the fragments are read over
    with pytest.raises(BadArgument) as caught:
        SnapshotReader(Trickle(DATA))
    assert caught.value.field == "size"


def cut_with_trailer() -> Snapshot:
    snapshot = cut()
    return Snapshot(
        snapshot.version_tag,
        snapshot.iso_backend,
        snapshot.fingerprint,
        snapshot.global_step,
        snapshot.fragments,
        snapshot.ledger,
        snapshot.contract,
        snapshot.actual_trailer(),
    )


def test_a_stream_that_only_reads_and_writes() -> None:
    class Minimal:
        def __init__(self) -> None:
            self.inner = io.BytesIO(DATA)

        def read(self, size: int) -> bytes:
            return self.inner.read(size)

        def seekable(self) -> bool:
            return False

    assert SnapshotReader(Minimal(), size=len(DATA)).read() == cut_with_trailer()  # type: ignore[arg-type]


def test_a_file_that_shrinks_while_it_is_read() -> None:
    with pytest.raises(Truncated, match="fragment 1"):
        SnapshotReader(io.BytesIO(DATA[:100]), size=len(DATA)).read()


def test_reading_starts_where_the_stream_stands() -> None:
    stream = io.BytesIO(b"head" + DATA)
    stream.seek(4)
    reader = SnapshotReader(stream)
    assert reader.size == len(DATA)
    assert reader.read() == cut_with_trailer()
    assert reader.offset == len(DATA)


def test_parts_may_be_left_out_or_read_in_pieces() -> None:
    reader = SnapshotReader(io.BytesIO(DATA))
    assert reader.head == SnapshotHead(SnapshotVersion.V3, IsoBackend.SCALAR, FINGERPRINT, 5, 2)
    first, second = reader.fragments(), None
    fragment = next(first)
    assert [piece.tolist() for piece in fragment.params_pieces(2)] == [[0, 1], [2]]
    with pytest.raises(WrongState, match="params"):
        fragment.read_params()
    second = next(first)
    assert (second.fragment_id, second.version, second.numel) == (1, 4, 2)
    assert second.read_momentum().tolist() == [0.5, 0.5]
    with pytest.raises(WrongState):
        second.read_params()
    assert next(first, None) is None
    assert reader.ledger() == cut().ledger
    assert reader.ledger() is reader.ledger()
    assert reader.trailer() == Trailer(TrailerForm.CONTRACT, FINGERPRINT, CONTRACT)


def test_arrays_may_be_given() -> None:
    fragment = next(SnapshotReader(io.BytesIO(DATA)).fragments())
    for wrong in (np.empty(2, np.float32), np.empty(3), np.empty(6, np.float32)[::2]):
        with pytest.raises(BadArgument):
            fragment.read_params(wrong)
    out = np.empty(3, np.float32)
    assert fragment.read_params(out) is out
    assert [piece.tolist() for piece in fragment.momentum_pieces()] == [[0.5] * 3]
    assert out.tolist() == [0, 1, 2]


def test_what_is_read_cannot_be_changed() -> None:
    state = read(DATA).fragments[0]
    for array in (state.params, state.momentum):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_progress_is_told_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    SnapshotReader(io.BytesIO(DATA), progress=lambda done, total: told.append((done, total))).read()
    assert told[-1] == (len(DATA), len(DATA))
    assert told == sorted(told)
    written: list[tuple[int, int]] = []
    files.write_to(io.BytesIO(), cut(), progress=lambda done, total: written.append((done, total)))
    assert written[-1] == (len(DATA), len(DATA))
    assert written == sorted(written)


def test_large_arrays_move_in_pieces_without_a_copy() -> None:
    values = np.ones((files.PIECE_BYTES // 4) * 2 + 5, np.float32)
    snapshot = cut(step=1, numels=(values.size,))
    snapshot = Snapshot(
        snapshot.version_tag,
        snapshot.iso_backend,
        FINGERPRINT,
        1,
        [FragmentState(1, values, values)],
        {},
        CONTRACT,
    )

    sizes: list[int] = []

    class Counting(io.RawIOBase):
        def write(self, data: Any) -> int:
            sizes.append(len(data))
            return len(data)

    tracemalloc.start()
    try:
        files.write_to(Counting(), snapshot)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert max(sizes) == files.PIECE_BYTES
