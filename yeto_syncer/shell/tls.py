"""TLS on the sockets of the syncer: the context from the files of the command line, a wire that encrypts, and
the learner ids that a client certificate names (D25).

The wire keeps OpenSSL away from the socket: bytes go through two buffers in memory, so no handshake, renewal
of keys or half-sent record ever waits for the network inside a call. The protocol inside is the same.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from yeto_proto._generated.messages import Buffer
from yeto_syncer.shell.wires import PlainWire

LEARNER_NAME = re.compile(r"yeto:learner:(0|[1-9][0-9]{0,9})")
"""The URI in a client certificate that allows the learner id to its holder; there may be several."""

CIPHERTEXT = memoryview(bytearray(1 << 18))
"""Where ciphertext lands between the kernel and OpenSSL; used within one call only."""

SEGMENT = 1 << 18
"""Bytes encrypted at once: with what is left of one, the most that waits inside a wire to be sent."""

SEND_TURN = 1 << 20
"""Bytes encrypted in one call, before the other sockets get their turn."""

SMALL = 1 << 12
"""Buffers below this are joined before they are encrypted: each call makes a record of its own."""

UNSENT_LIMIT = 1 << 16
"""Answers of the TLS layer itself that may wait; a peer that asks for more and reads none is not read."""


class TlsFilesError(Exception):
    """A certificate, key or CA file that cannot be used: what, the flag, what to do."""

    def __init__(self, what: str, flag: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.flag, self.fix = what, flag, fix


def server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """TLS 1.3 with this chain and key; with `client_ca` every peer must show a certificate that it signed.

    Raises TlsFilesError. A key with a password is refused instead of asking for it on the terminal.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Sessions are long and links are few: without tickets every connection shows its certificate anew.
    context.num_tickets = 0
    for flag, path in (("--tls-cert", certificate), ("--tls-key", key), ("--tls-client-ca", client_ca)):
        if path is not None:
            _readable(path, flag)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or "it is no PEM file"
        what = f"cannot use {certificate} with the key {key}: {reason.replace('_', ' ').lower()}"
        raise TlsFilesError(
            what, "--tls-cert", "give a PEM chain and its PEM key, without password"
        ) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(cafile=client_ca)
        except ssl.SSLError as error:
            reason = (error.reason or "no PEM certificate in it").replace("_", " ").lower()
            what = f"cannot use the client CA {client_ca}: {reason}"
            raise TlsFilesError(what, "--tls-client-ca", "give a PEM file of certificates") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _readable(path: Path, flag: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise TlsFilesError(
            f"cannot read {path}: {error.strerror}", flag, "give a file that can be read"
        ) from None


def learner_ids(certificate: Mapping[str, Any] | None) -> frozenset[int]:
    """The ids that a certificate, as `ssl` tells it, allows. Only URIs of exactly this form count."""
    names = certificate.get("subjectAltName", ()) if certificate else ()
    found = (LEARNER_NAME.fullmatch(value) for kind, value in names if kind == "URI")
    return frozenset(int(match.group(1)) for match in found if match is not None)


class TlsWire:
    """A socket with TLS inside. The handshake happens in `recv_into`, as its bytes come.

    `send` tells of bytes as taken once the kernel has their ciphertext. Until then it keeps back the last
    byte of what it has encrypted: so the frame counts as begun, and the caller comes back with that byte
    first.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = PlainWire(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._verified = context.verify_mode is ssl.CERT_REQUIRED
        self._shaken = False
        self._heard = False
        self._left = memoryview(b"")  # ciphertext that the kernel has not taken
        self._kept = False  # the first byte that the caller comes with is encrypted already
        self._deaf = False  # what comes is thrown away
        self._failure: OSError | None = None  # what the next read will tell
        self.trouble: str | None = None

    def fileno(self) -> int:
        return self._plain.fileno()

    @property
    def learners(self) -> frozenset[int] | None:
        """The learner ids that the peer's certificate allows; None when no certificate is asked for."""
        return learner_ids(self._tls.getpeercert()) if self._verified else None

    # -- reading

    @property
    def pending(self) -> bool:
        """Whether `recv_into` has something to tell that the kernel knows nothing of."""
        if self._failure is not None:
            return True
        return not self._deaf and (self._incoming.pending > 0 or self._tls.pending() > 0)

    def recv_into(self, view: memoryview) -> int | None:
        """Decrypt into `view` what is there. Fewer bytes than it holds mean that the kernel has no more."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._deaf = True
            raise failure
        if self._deaf:
            return self._plain.recv_into(view)
        done = 0
        try:
            done = self._read(view)
        except _EndError as end:
            done = end.done
            if not done:
                return 0
            self._failure = end
        return done or None

    def _read(self, view: memoryview) -> int:
        done = 0
        try:
            while done < len(view):
                count = self._decrypt(view[done:])
                if count is None:
                    break
                if count == 0:
                    raise _EndError(done)
                done += count
            self._flush()
        except _EndError:
            raise
        except OSError as error:
            self._fail(error)
            raise _EndError(done) from error
        return done

    def _decrypt(self, view: memoryview) -> int | None:
        # Bytes of one record, None when there is none now, 0 at the end.
        while True:
            try:
                if not self._shaken:
                    self._tls.do_handshake()
                    self._shaken = True
                return int(self._tls.read(len(view), view))
            except ssl.SSLWantReadError:
                count = self._refill()
                if count is None:
                    return None
                if count == 0:
                    if self._heard and not self._shaken:
                        self.trouble = "it left in the middle of the TLS handshake"
                    return 0

    def _refill(self) -> int | None:
        # Ciphertext from the kernel.
        if self._outgoing.pending > UNSENT_LIMIT:
            raise OSError("it makes the TLS layer talk and does not listen")
        self._flush()
        count = self._plain.recv_into(CIPHERTEXT)
        if count:
            self._heard = True
            self._incoming.write(CIPHERTEXT[:count])
        return count

    def _fail(self, error: OSError) -> None:
        if not self._shaken and isinstance(error, ssl.SSLError):
            self.trouble = words(error)
        with contextlib.suppress(OSError):
            self._flush()  # the alert that tells the peer why
        self._deaf = True

    # -- writing

    @property
    def unsent(self) -> bool:
        """Whether bytes wait inside for the kernel; `flush` hands them on."""
        return bool(self._left) or self._outgoing.pending > 0

    def flush(self) -> None:
        """Hand to the kernel what waits inside."""
        self._flush()

    def send(self, buffers: Sequence[Buffer]) -> int | None:
        """Bytes taken. 0 means that the kernel took ciphertext, and no byte of the caller is complete."""
        if not self._shaken or self._deaf:
            raise OSError("TLS is not established")
        waiting = len(self._left)
        if not self._flush():
            return 0 if len(self._left) < waiting else None
        done = int(self._kept)
        self._kept = False
        for segment, size in segments(buffers, done):
            for part in segment:
                self._tls.write(part)
            done += size
            if not self._flush():
                self._kept = True
                return done - 1
            if done >= SEND_TURN:
                break
        return done

    def _flush(self) -> bool:
        # True when the kernel has everything.
        while True:
            if not self._left:
                if not self._outgoing.pending:
                    return True
                self._left = memoryview(self._outgoing.read())
            count = self._plain.send([self._left])
            if count is None:
                return False
            self._left = self._left[count:]

    # -- parting

    def finish(self) -> None:
        """Say goodbye in TLS and in TCP. What still comes is thrown away."""
        if self._shaken and not self._deaf:
            # The answer to the goodbye is not waited for, and a peer that has gone needs none.
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self._flush()
        self._deaf = True
        self._plain.finish()

    def close(self) -> None:
        self._plain.close()


class _EndError(OSError):
    # The stream has ended after `done` bytes of this read.
    def __init__(self, done: int) -> None:
        super().__init__("end of the TLS stream")
        self.done = done


def segments(buffers: Sequence[Buffer], skip: int) -> Iterator[tuple[list[Buffer], int]]:
    """Pieces to encrypt in one go, and how many bytes each holds, after the first `skip` bytes.

    Small buffers are joined. A piece never ends behind the first byte of a longer buffer: that byte would be
    kept back, and a frame of which nothing was told as taken may still be withdrawn by the caller.
    """
    segment: list[Buffer] = []
    joined = bytearray()
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)[skip:]
        skip = max(skip - len(buffer), 0)
        while len(view):
            room = SEGMENT - size
            if room == 1 and len(view) > 1:
                room = 0
            if room <= 0:
                if joined:
                    segment.append(joined)
                yield segment, size
                segment, joined, size = [], bytearray(), 0
                continue
            part, view = view[:room], view[room:]
            size += len(part)
            if len(part) < SMALL:
                joined += part
                continue
            if joined:
                segment.append(joined)
                joined = bytearray()
            segment.append(part)
    if joined:
        segment.append(joined)
    if size:
        yield segment, size


def words(error: ssl.SSLError) -> str:
    """An error of OpenSSL as a log line shows it."""
    reason = (error.reason or "not a TLS handshake").replace("_", " ").lower()
    detail = getattr(error, "verify_message", "")
    return f"{reason}: {detail}" if detail else reason
