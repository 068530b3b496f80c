"""TLS on a socket pair: partial writes, bytes that only OpenSSL knows of, peers that misuse it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.authority import Authority
from yeto_syncer.shell.tls import (
    SEGMENT,
    SMALL,
    TlsFilesError,
    TlsWire,
    learner_ids,
    segments,
    server_context,
)

WAIT_S = 120.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def wait(sock: socket.socket | TlsWire) -> None:
    """Until there is something to read."""
    assert select.select([sock], [], [], WAIT_S)[0], "nothing came"


class Pair:
    """A wire and a client without a thread: the client's TLS is moved by hand, both sockets never block."""

    def __init__(self, authority: Authority, *, mutual: bool = False, names: tuple[str, ...] = ()) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.sock = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        listener.close()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        ca = authority.ca if mutual else None
        self.wire = TlsWire(server, server_context(authority.certificate, authority.key, ca))
        self.sock.setblocking(False)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = authority.client(*names).wrap_bio(
            self.incoming, self.outgoing, server_hostname="127.0.0.1"
        )

    def push(self) -> None:
        """Give the client's ciphertext to the kernel."""
        self.sock.setblocking(True)
        self.sock.sendall(self.outgoing.read())
        self.sock.setblocking(False)

    def pull(self, limit: int = 1 << 20) -> int:
        """Wait for ciphertext and take it from the kernel."""
        wait(self.sock)
        data = self.sock.recv(limit)
        self.incoming.write(data)
        return len(data)

    def receive(self, view: memoryview) -> int | None:
        """What the wire reads, once it has something to read."""
        if not self.wire.pending:
            wait(self.wire)
        return self.wire.recv_into(view)

    def shake(self) -> None:
        view = memoryview(bytearray(1))
        for _ in range(10):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                self.push()
                assert self.receive(view) is None
                return
            self.push()
            assert self.receive(view) is None
            self.pull()
        raise AssertionError("no handshake")

    def read(self, count: int) -> bytes:
        """`count` bytes of plain text; the wire must have sent them."""
        found = b""
        while len(found) < count:
            try:
                found += self.tls.read(count - len(found))
            except ssl.SSLWantReadError:
                assert self.pull(), f"only {len(found)} of {count} bytes came"
        return found

    def close(self) -> None:
        self.sock.close()
        self.wire.close()


@pytest.fixture
def pair(authority: Authority) -> Iterator[Pair]:
    made = Pair(authority)
    made.shake()
    yield made
    made.close()


def test_bytes_that_are_already_decrypted_are_told_of(pair: Pair) -> None:
    pair.tls.write(b"x" * 40_000)  # three records
    pair.push()
    view = memoryview(bytearray(40_000))
    assert pair.receive(view[:10]) == 10
    assert pair.wire.pending, "the kernel has given all of that record, and select would not tell of it"
    done = 10
    while done < 40_000:
        done += pair.receive(view[done:]) or 0
    assert bytes(view) == b"x" * 40_000
    assert not pair.wire.pending
    assert pair.wire.recv_into(view) is None


def test_a_byte_counts_as_taken_when_its_ciphertext_is_with_the_kernel(pair: Pair) -> None:
    data = os.urandom(3 * SEGMENT)
    rest: list[memoryview] = [memoryview(data)]
    received = b""
    told = []
    while rest:
        count = pair.wire.send(rest)
        told.append(count)
        if count:
            rest = [rest[0][count:]] if count < len(rest[0]) else []
        elif select.select([pair.sock], [pair.wire], [], WAIT_S)[0]:
            pair.pull(1 << 15)
        with contextlib.suppress(ssl.SSLWantReadError):
            received += pair.tls.read(1 << 20)
    assert 0 in told and None in told, "the kernel was never full"
    assert received + pair.read(len(data) - len(received)) == data
    assert not pair.wire.unsent


def test_a_frame_that_was_begun_is_told_as_begun(pair: Pair) -> None:
    # What was encrypted must leave, so the caller may not take the frame back: at least one byte is told.
    while (count := pair.wire.send([b"h" * 13, b"b" * 100_000])) == 100_013:
        pass
    assert count is not None and 0 < count < 100_013
    assert pair.wire.unsent


def test_a_goodbye_is_an_end_and_not_an_error(pair: Pair) -> None:
    pair.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        pair.tls.unwrap()
    pair.push()
    view = memoryview(bytearray(64))
    assert pair.receive(view) == 4
    with pytest.raises(OSError, match="end of the TLS stream"):
        pair.receive(view)
    assert pair.wire.trouble is None


def test_after_its_own_goodbye_it_discards_what_comes(pair: Pair) -> None:
    assert pair.wire.send([b"bye"]) == 3
    pair.wire.finish()
    assert pair.read(3) == b"bye"
    pair.tls.write(b"too late")
    pair.push()
    assert not pair.wire.pending
    assert pair.receive(memoryview(bytearray(1000)))  # ciphertext, for nobody
    with pytest.raises(OSError, match="not established"):
        pair.wire.send([b"more"])


def test_bytes_that_are_no_tls_are_refused_with_a_reason(authority: Authority) -> None:
    pair = Pair(authority)
    pair.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert pair.receive(memoryview(bytearray(10))) == 0
    assert pair.wire.trouble == "http request"
    pair.close()


def test_nothing_can_be_sent_before_the_handshake(authority: Authority) -> None:
    pair = Pair(authority)
    with pytest.raises(OSError, match="not established"):
        pair.wire.send([b"early"])
    pair.close()


def test_who_leaves_without_a_byte_has_done_nothing_wrong(authority: Authority) -> None:
    pair = Pair(authority)
    pair.sock.close()
    assert pair.receive(memoryview(bytearray(10))) == 0
    assert pair.wire.trouble is None
    pair.wire.close()


def test_a_tampered_record_ends_the_stream_and_nothing_of_it_is_seen(pair: Pair) -> None:
    pair.tls.write(b"good")
    good = pair.outgoing.read()
    pair.tls.write(b"evil")
    evil = bytearray(pair.outgoing.read())
    evil[-1] ^= 1
    pair.sock.setblocking(True)
    pair.sock.sendall(good + evil)
    view = memoryview(bytearray(64))
    assert pair.receive(view) == 4
    assert bytes(view[:4]) == b"good"
    with pytest.raises(OSError, match="end of the TLS stream"):
        while pair.receive(view) is None:
            pass


@pytest.mark.parametrize("mutual", [False, True])
def test_learner_ids_are_known_when_a_certificate_is_asked_for(authority: Authority, mutual: bool) -> None:
    pair = Pair(authority, mutual=mutual, names=("yeto:learner:7", "yeto:learner:12", "urn:other"))
    pair.shake()
    assert pair.wire.learners == (frozenset({7, 12}) if mutual else None)
    pair.close()


@pytest.mark.parametrize(
    ("kind", "name", "ids"),
    [
        ("URI", "yeto:learner:0", {0}),
        ("URI", "yeto:learner:31", {31}),
        ("URI", "yeto:learner:031", set()),
        ("URI", "yeto:learner:-1", set()),
        ("URI", "yeto:learner:1 ", set()),
        ("URI", "yeto:learner:", set()),
        ("URI", "yeto:learner:" + "1" * 5000, set()),
        ("URI", "YETO:learner:1", set()),
        ("URI", "x:yeto:learner:1", set()),
        ("DNS", "yeto:learner:1", set()),
        ("URI", "yeto:learner:\u0661", set()),
    ],
)
def test_names_that_count(kind: str, name: str, ids: set[int]) -> None:
    assert learner_ids({"subjectAltName": ((kind, name),)}) == ids


def test_no_certificate_names_nobody() -> None:
    assert learner_ids(None) == learner_ids({}) == frozenset()


@pytest.mark.parametrize("skip", [0, 1])
def test_segments_hold_every_byte_once_in_order(skip: int) -> None:
    buffers = [os.urandom(size) for size in (13, 17, SMALL, 13, 3 * SEGMENT + 5, 1, 13, SEGMENT - 14, 2, 13)]
    pieces = list(segments(buffers, skip))
    assert b"".join(bytes(part) for segment, _ in pieces for part in segment) == b"".join(buffers)[skip:]
    assert all(size == sum(len(part) for part in segment) <= SEGMENT for segment, size in pieces)


def test_no_segment_ends_with_the_first_byte_of_a_frame() -> None:
    first, second = b"a" * (SEGMENT - 1), b"b" * 13
    assert [size for _, size in segments([first, second], 0)] == [SEGMENT - 1, 13]


class TestFiles:
    """Files that cannot be used are named with their flag."""

    def refused(self, *files: Path | None) -> TlsFilesError:
        with pytest.raises(TlsFilesError) as caught:
            server_context(*files)  # type: ignore[arg-type]
        return caught.value

    def test_a_missing_file(self, authority: Authority, tmp_path: Path) -> None:
        error = self.refused(authority.certificate, tmp_path / "none", None)
        assert error.flag == "--tls-key"
        assert "No such file" in error.what

    def test_a_key_of_another_certificate(self, authority: Authority, tmp_path: Path) -> None:
        other = Authority(tmp_path)
        error = self.refused(authority.certificate, other.key, None)
        assert error.flag == "--tls-cert"
        assert "key values mismatch" in error.what

    def test_no_pem(self, authority: Authority, tmp_path: Path) -> None:
        junk = tmp_path / "junk"
        junk.write_bytes(b"junk\n")
        assert self.refused(junk, authority.key, None).flag == "--tls-cert"
        assert self.refused(authority.certificate, junk, None).flag == "--tls-cert"
        assert self.refused(authority.certificate, authority.key, junk).flag == "--tls-client-ca"

    def test_a_key_with_a_password_is_not_asked_for_it(self, authority: Authority, tmp_path: Path) -> None:
        from cryptography.hazmat.primitives import serialization as form

        key = form.load_pem_private_key(authority.key.read_bytes(), None)
        locked = tmp_path / "locked"
        secret = form.BestAvailableEncryption(b"secret")
        locked.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, secret))
        error = self.refused(authority.certificate, locked, None)
        assert error.flag == "--tls-cert"
