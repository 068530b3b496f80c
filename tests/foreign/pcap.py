"""Writes capture files of TCP connections on loopback, packet by packet, as a capture of them would look.

The file is the classic libpcap format with raw IPv4 packets. Segments are cut where the caller wants, so that
frames lie across packets and packets hold several frames.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

SYN, ACK, FIN = 0x02, 0x10, 0x01
LINKTYPE_RAW = 101
ADDRESS = bytes([127, 0, 0, 1])


@dataclass
class Capture:
    """Packets in order. The server has `port`, each connection a client port of its own."""

    port: int = 29400
    packets: list[bytes] = field(default_factory=list)
    _next_client: int = 40000

    def connect(self, handshake: bool = True) -> Connection:
        """A new connection; without its handshake the capture begins in the middle of it."""
        self._next_client += 1
        connection = Connection(self, self._next_client)
        if handshake:
            connection.packet(True, b"", SYN)
            connection.packet(False, b"", SYN | ACK)
            connection.packet(True, b"", ACK)
        return connection

    def write(self, path: Path) -> Path:
        """The file; packets are a millisecond apart."""
        parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, LINKTYPE_RAW)]
        for number, packet in enumerate(self.packets):
            head = struct.pack("<IIII", 1_700_000_000, number * 1000, len(packet), len(packet))
            parts += [head, packet]
        path.write_bytes(b"".join(parts))
        return path


@dataclass
class Connection:
    """One TCP connection."""

    capture: Capture
    client_port: int
    sent: dict[bool, int] = field(default_factory=lambda: {True: 1000, False: 5000})

    def send(self, to_server: bool, data: bytes, segment: int = 1400) -> None:
        """Bytes in one direction, in segments of at most so many bytes, each acknowledged by the next."""
        for start in range(0, len(data), segment):
            self.packet(to_server, data[start : start + segment], ACK)

    def packet(self, to_server: bool, data: bytes, flags: int) -> None:
        """One packet; sequence numbers follow from what was sent before."""
        ports = (self.client_port, self.capture.port)
        source, target = ports if to_server else reversed(ports)
        head = struct.pack(
            ">HHIIBBHHH",
            *(source, target, self.sent[to_server] & 0xFFFFFFFF, self.sent[not to_server] & 0xFFFFFFFF),
            *(5 << 4, flags, 0xFFFF, 0, 0),
        )
        self.sent[to_server] += len(data) + (1 if flags & (SYN | FIN) else 0)
        total = 20 + len(head) + len(data)
        network = struct.pack(">BBHHHBBH4s4s", 0x45, 0, total, 0, 0x4000, 64, 6, 0, ADDRESS, ADDRESS)
        self.capture.packets.append(network + head + data)
