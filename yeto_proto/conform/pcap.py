"""Packet captures of plain TCP: the streams of a libpcap file, put in order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from .recorder import Connection, Recorder
from .trace import BadTraceError

__all__ = ["read_pcap"]

# Magic of the file: byte order, and ticks in a second.
_MAGICS: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e6),
    b"\xa1\xb2\xc3\xd4": (">", 1e6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e9),
    b"\xa1\xb2\x3c\x4d": (">", 1e9),
}
# Link type: bytes before the IP packet.
_LINKS: Final = {0: 4, 1: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 276: 20}
_ETHERNET, _VLAN, _TCP = 1, b"\x81\x00", 6
_FIN, _SYN, _RST = 1, 2, 4


class _Segment(NamedTuple):
    time: float
    source: tuple[bytes, int]
    target: tuple[bytes, int]
    sequence: int
    flags: int
    data: bytes


class _Half:
    """One direction of a connection: bytes that came early wait for those before them."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.waiting: dict[int, bytes] = {}
        self.fin: int | None = None
        self.ended = False

    def take(self, sequence: int, data: bytes) -> bytes:
        """The bytes that are in order now."""
        if self.next is None:
            self.next = sequence
        if data:
            self.waiting[sequence] = max(self.waiting.get(sequence, b""), data, key=len)
        ready = b""
        for start in sorted(self.waiting, key=lambda each: _distance(self.next or 0, each)):
            late = _distance(self.next, start)
            if late > 0:
                break
            piece = self.waiting.pop(start)[-late if late else 0 :]
            ready += piece
            self.next = (self.next + len(piece)) % 2**32
        return ready


def _distance(base: int, value: int) -> int:
    """How far a sequence number is ahead, with wrap-around; negative for one that is behind."""
    return (value - base + 2**31) % 2**32 - 2**31


def read_pcap(path: Path, port: int, recorder: Recorder) -> int:
    """Feed every connection to a TCP port; returns their number. Raises BadTraceError."""
    connections: dict[tuple[tuple[bytes, int], tuple[bytes, int]], tuple[Connection, dict[str, _Half]]] = {}
    count = 0
    first: float | None = None
    for segment in _segments(path):
        if port not in (segment.source[1], segment.target[1]):
            continue
        first = segment.time if first is None else first
        side = "learner" if segment.target[1] == port else "syncer"
        key = (segment.source, segment.target) if side == "learner" else (segment.target, segment.source)
        opens = bool(segment.flags & _SYN) and side == "learner"
        if key not in connections or (opens and connections[key][1]["learner"].ended):
            connections[key] = recorder.connection(), {"learner": _Half(), "syncer": _Half()}
            count += 1
        connection, halves = connections[key]
        _feed(connection, halves[side], side, segment, segment.time - first)
    return count


def _feed(connection: Connection, half: _Half, side: str, segment: _Segment, when: float) -> None:
    if segment.flags & _SYN:
        half.next = (segment.sequence + 1) % 2**32
        return
    ready = half.take(segment.sequence, segment.data)
    if ready:
        connection.feed(side, ready, when)
    if segment.flags & _FIN:
        half.fin = (segment.sequence + len(segment.data)) % 2**32
    over = half.fin is not None and half.next is not None and _distance(half.fin, half.next) >= 0
    if (over or segment.flags & _RST) and not half.ended:
        half.ended = True
        connection.end(side, when)


def _segments(path: Path) -> Iterator[_Segment]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadTraceError(f"{path}: cannot be read: {error.strerror}") from None
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        raise BadTraceError(f"{path}: is pcapng; convert it: editcap -F pcap {path.name} other.pcap")
    if data[:4] not in _MAGICS or len(data) < 24:
        raise BadTraceError(f"{path}: is not a libpcap file")
    order, ticks = _MAGICS[data[:4]]
    (link,) = struct.unpack_from(f"{order}I", data, 20)
    link &= 0x0FFFFFFF
    if link not in _LINKS:
        raise BadTraceError(f"{path}: link type {link} is not read; known are {sorted(_LINKS)}")
    at = 24
    while at + 16 <= len(data):
        seconds, fraction, length, _ = struct.unpack_from(f"{order}IIII", data, at)
        packet = data[at + 16 : at + 16 + length]
        at += 16 + length
        skip = _LINKS[link]
        while link == _ETHERNET and packet[skip - 2 : skip] == _VLAN:
            skip += 4
        segment = _tcp(packet[skip:], seconds + fraction / ticks)
        if segment is not None:
            yield segment


def _tcp(packet: bytes, when: float) -> _Segment | None:
    """The TCP segment of an IP packet; None for anything else, and for fragments of IP."""
    if len(packet) < 20:
        return None
    if packet[0] >> 4 == 4:
        head = 4 * (packet[0] & 15)
        total, fragment, protocol = struct.unpack_from(">H", packet, 2)[0], packet[6:8], packet[9]
        if protocol != _TCP or int.from_bytes(fragment) & 0x3FFF:
            return None
        source, target, tcp = packet[12:16], packet[16:20], packet[head:total]
    elif packet[0] >> 4 == 6 and packet[6] == _TCP:
        source, target = packet[8:24], packet[24:40]
        tcp = packet[40 : 40 + struct.unpack_from(">H", packet, 4)[0]]
    else:
        return None
    if len(tcp) < 20:
        return None
    from_port, to_port, sequence = struct.unpack_from(">HHI", tcp)
    offset = 4 * (tcp[12] >> 4)
    return _Segment(when, (source, from_port), (target, to_port), sequence, tcp[13], tcp[offset:])
