"""Wire benchmarks: headers, chunk building, readers and the layout, each beside a raw limit.

    python -m tests.bench.bench_wire

prints a table.  `rows()` gives the same figures as dicts.  Raw limits are measured in the same process, or
for sockets in the same pair of processes, a moment before.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from yeto_proto._generated.constants import CHUNK_SLICE, HELLO_MAX
from yeto_proto._generated.messages import Buffer, Heartbeat, PushFragment
from yeto_proto._generated.types import Dtype, FrameType, MergeMode, Role
from yeto_proto.chunks import slices
from yeto_proto.codec import encode, header, parse_header
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session, WireLayout
from yeto_proto.writer import advance, frame

Row = dict[str, Any]

MIB = 1 << 20
MESSAGE = 64 * MIB  # bulk bytes of one message
MESSAGES = 12


def _session(numel: int) -> Session:
    layout = WireLayout.build([(MergeMode.AVG, (numel,), None)])
    return Session(Dtype.F32, layout, bytes(32), bytes(32), None)


def _push(numel: int) -> PushFragment:
    delta = np.ones(numel, np.float32)
    return PushFragment(0, 0, 1, 1, 0, 1, 1, 1, delta.data.cast("B"))


def _row(work: str, value: float, unit: str, raw: float, target: float | None, *, rate: bool) -> Row:
    """One figure beside its raw limit; the ratio is 1 when they are equally fast."""
    ratio = value / raw if rate else raw / value
    return {"work": work, "value": value, "unit": unit, "raw": raw, "ratio": ratio, "target": target}


def _seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        started = perf_counter()
        work()
        times.append(perf_counter() - started)
    return median(times)


def _each(work: Callable[[], object], calls: int = 20_000) -> float:
    """Microseconds of one of many calls."""

    def loop() -> None:
        for _ in range(calls):
            work()

    return _seconds(loop) / calls * 1e6


def _header_rows() -> list[Row]:
    packed = header(FrameType.HEARTBEAT, 12)
    bare = struct.Struct("<IBQ")
    beat = Heartbeat(3, 99)
    reader = FrameReader(Role.SYNCER, _session(4))
    many = b"".join(bytes(each) for each in encode(beat)) * 300

    def feed() -> None:
        reader.get_buffer()[: len(many)] = many
        reader.buffer_updated(len(many))

    raw_parse = _each(lambda: bare.unpack(packed))
    raw_build = _each(lambda: bare.pack(1, 2, 3))
    return [
        _row("header parse", _each(lambda: parse_header(packed)), "us", raw_parse, None, rate=False),
        _row("header build", _each(lambda: header(6, 12)), "us", raw_build, None, rate=False),
        _row("HEARTBEAT built", _each(lambda: encode(beat)), "us", raw_build, None, rate=False),
        _row("HEARTBEAT read", _seconds(feed, 50) / 300 * 1e6, "us", raw_parse, None, rate=False),
    ]


def _chunk_rows() -> list[Row]:
    message = _push(256 * MIB // 4)
    source, target = np.ones(256 * MIB, np.uint8), np.zeros(256 * MIB, np.uint8)
    raw = 256 * MIB / _seconds(lambda: np.copyto(target, source)) / 1e9

    def build() -> None:
        for _ in slices(message, 1):
            pass

    def join() -> None:
        for each in slices(message, 1):
            b"".join(each)

    return [
        _row("chunk building", 256 * MIB / _seconds(build) / 1e9, "GB/s", raw, 0.5, rate=True),
        _row("chunk building, joined", 256 * MIB / _seconds(join) / 1e9, "GB/s", raw, 0.5, rate=True),
    ]


def _sends(frames: Iterable[list[Buffer]], sock: socket.socket) -> None:
    for buffers in frames:
        while not advance(buffers, sock.sendmsg(buffers)):
            pass


def _send_raw(sock: socket.socket) -> None:
    piece = np.ones(CHUNK_SLICE, np.uint8).data
    for _ in range(MESSAGES * MESSAGE // CHUNK_SLICE):
        sock.sendall(piece)


def _send_bare(sock: socket.socket) -> None:
    message = _push(MESSAGE // 4)
    _sends((frame(message) for _ in range(MESSAGES)), sock)


def _send_chunks(sock: socket.socket) -> None:
    message = _push(MESSAGE // 4)
    _sends((each for number in range(MESSAGES) for each in slices(message, number)), sock)


def _receive_raw(sock: socket.socket) -> int:
    buffer = np.empty(CHUNK_SLICE, np.uint8).data
    total = 0
    while count := sock.recv_into(buffer):
        total += count
    return total


def _receive_frames(sock: socket.socket) -> int:
    reader = FrameReader(Role.SYNCER, _session(MESSAGE // 4))
    total = 0
    while count := sock.recv_into(reader.get_buffer()):
        total += sum(len(each.delta) for each in reader.buffer_updated(count))  # type: ignore[union-attr]
    return total


def _transfer(send: Callable[[socket.socket], None], receive: Callable[[socket.socket], int]) -> float:
    """GB/s from another process through a pair of connected sockets, counted from the first byte on."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("fork").Process(target=_sender, args=(send, ours, theirs))
    process.start()
    theirs.close()
    with ours:
        ours.recv(1, socket.MSG_PEEK)
        started = perf_counter()
        total = receive(ours)
        seconds = perf_counter() - started
    process.join()
    if total != MESSAGES * MESSAGE:
        raise RuntimeError(f"{total} bytes of bulk arrived, not {MESSAGES * MESSAGE}")
    return total / seconds / 1e9


def _sender(send: Callable[[socket.socket], None], theirs: socket.socket, ours: socket.socket) -> None:
    theirs.close()
    with ours:
        send(ours)


def _reader_rows() -> list[Row]:
    raws, bares, chunked = [], [], []
    for _ in range(3):
        raws.append(_transfer(_send_raw, _receive_raw))
        bares.append(_transfer(_send_bare, _receive_frames))
        chunked.append(_transfer(_send_chunks, _receive_frames))
    raw = median(raws)
    return [
        _row("reader, bare PUSH of 64 MiB", median(bares), "GB/s", raw, None, rate=True),
        _row("reader, PUSH of 64 MiB in chunks", median(chunked), "GB/s", raw, None, rate=True),
    ]


def _layout_rows() -> list[Row]:
    one = WireLayout.build([(MergeMode.RDA, (7,), None)])
    count = HELLO_MAX // len(one.data)
    data = one.data * count
    known, _ = WireLayout.parse(data, count)
    raw = _seconds(lambda: bytearray(data))
    parse = _seconds(lambda: WireLayout.parse(data, count), 3)
    view = memoryview(bytearray(data))
    compare = _seconds(lambda: WireLayout.parse(view, count, known=known))
    return [
        _row(f"layout of {count:,} fragments parsed", parse, "s", raw, None, rate=False),
        _row(f"layout of {count:,} fragments compared", compare, "s", raw, None, rate=False),
    ]


def rows() -> list[Row]:
    """All figures: work, value, unit, raw (the limit in that unit), ratio (1 at the limit), target."""
    return _header_rows() + _chunk_rows() + _reader_rows() + _layout_rows()


def main() -> int:
    print(f"{'work':42} {'value':>10} {'unit':5} {'raw':>10} {'ratio':>8} {'target':>7}")
    for row in rows():
        target = "" if row["target"] is None else f"{row['target']:.2f}"
        figures = f"{row['value']:10.3f} {row['unit']:5} {row['raw']:10.3f} {row['ratio']:8.2f} {target:>7}"
        print(f"{row['work']:42} {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
