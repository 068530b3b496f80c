"""`yeto-learner doctor`: why a learner cannot join, one line for each thing that could be the reason.

Without a layout nothing is joined: the probe is a HELLO with an id that no run has, which a syncer judges
after version and MAC and before it looks at the session. With a layout the probe is the HELLO of the learner
itself.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum

from yeto_proto import hello_mac
from yeto_proto._generated.constants import PROTOCOL_VERSION
from yeto_proto._generated.errors import (
    AuthenticationFailed,
    LearnerOutOfRange,
    ProfileMismatch,
    ProfileMissing,
    VersionMismatch,
)
from yeto_proto._generated.messages import Error, Hello
from yeto_proto._generated.types import Dtype, MergeMode, Role
from yeto_proto.errors_base import YetoError
from yeto_proto.layout import Fragment, Layout, Tensor
from yeto_proto.probe import NOBODY
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session

CONNECT_S = 5.0
ANSWER_S = 5.0
"""How long a refusal may take."""

SILENCE_S = 1.5
"""A syncer says nothing to a HELLO that it accepts; this much silence counts as acceptance."""

_FOREIGN = "the port may speak TLS (give --tls-ca FILE), or belong to something else"

_OTHER_NAME = "certificate does not name"
"""What a syncer says of a good certificate that carries other learner ids. The MAC was judged before."""


class Verdict(Enum):
    """What was found out about one thing."""

    GOOD = "ok"
    BAD = "FAIL"
    UNKNOWN = "?"


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    subject: str
    verdict: Verdict
    detail: str

    def __str__(self) -> str:
        return f"{self.subject:<9}{self.verdict.value:<6}{self.detail}"


@dataclass(frozen=True)
class Patient:
    """Who wants to join, and where. Without `layout` only what needs none is looked at."""

    host: str
    port: int
    key: bytes | None = None
    layout: Layout | None = None
    learner_id: int = 0
    dtype: Dtype = Dtype.BF16
    contract: bytes | None = None
    profile: bytes | None = None
    tls: ssl.SSLContext | None = None


class _RefusedError(Exception):
    """The syncer answered with an ERROR frame of this text."""


def examine(patient: Patient) -> Iterator[Finding]:
    """Findings in the order in which they can fail; ends after the first that makes the rest unknowable."""
    try:
        addresses = socket.getaddrinfo(patient.host, patient.port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield Finding("DNS", Verdict.BAD, f"{patient.host} cannot be resolved: {error.strerror}")
        return
    except UnicodeError:
        yield Finding("DNS", Verdict.BAD, f"{patient.host} cannot be the name of a host; is it spelt right?")
        return
    found = sorted({str(entry[4][0]) for entry in addresses})
    yield Finding("DNS", Verdict.GOOD, f"{patient.host} is {', '.join(found)}")
    try:
        begun = time.monotonic()
        with socket.create_connection((patient.host, patient.port), CONNECT_S):
            took = time.monotonic() - begun
    except OSError as error:
        reason = error.strerror or str(error)
        yield Finding("TCP", Verdict.BAD, f"port {patient.port}: {reason}; is the syncer running there?")
        return
    yield Finding("TCP", Verdict.GOOD, f"port {patient.port} accepts after {took * 1e3:.1f} ms")
    if patient.tls is not None:
        finding = _look_at_tls(patient)
        yield finding
        if finding.verdict is Verdict.BAD:
            return
    admitted = yield from _first_probe(patient)
    if not admitted:
        return
    if patient.layout is None:
        detail = "not looked at: give --layout FILE and --learner-id N to try the HELLO of that learner"
        yield Finding("session", Verdict.UNKNOWN, detail)
        return
    yield from _second_probe(patient, patient.layout)


def _look_at_tls(patient: Patient) -> Finding:
    """The handshake alone. What the syncer thinks of this side's certificate shows later, with TLS 1.3."""
    try:
        with _connect(patient) as connection:
            assert isinstance(connection, ssl.SSLSocket)
            certificate = connection.getpeercert() or {}
            until = certificate.get("notAfter", "?")
            return Finding("TLS", Verdict.GOOD, f"{connection.version()}, certificate valid until {until}")
    except ssl.SSLCertVerificationError as error:
        detail = (
            f"the syncer's certificate is not accepted: {error.verify_message}; is --tls-ca what signed it?"
        )
    except ssl.SSLError as error:
        detail = f"{_words(error)}; does the syncer run with --tls-cert?"
    except TimeoutError:
        detail = f"no handshake within {CONNECT_S:g} s; does the syncer run with --tls-cert?"
    except OSError as error:
        detail = f"the connection broke: {error.strerror or error}; does the syncer run with --tls-cert?"
    return Finding("TLS", Verdict.BAD, detail)


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _connect(patient: Patient) -> socket.socket:
    connection = socket.create_connection((patient.host, patient.port), CONNECT_S)
    if patient.tls is None:
        return connection
    try:
        return patient.tls.wrap_socket(connection, server_hostname=patient.host)
    except OSError:
        connection.close()
        raise


def _first_probe(patient: Patient) -> Generator[Finding, None, bool]:
    """Version and MAC. Its value is whether a HELLO could get as far as the session."""
    anything = Layout((Fragment(MergeMode.AVG, (Tensor("probe", 1),)),))
    try:
        _knock(patient, _hello(patient, anything, NOBODY), ANSWER_S)
    except _RefusedError as refusal:
        text = str(refusal)
    except ssl.SSLError as error:
        detail = f"the syncer ended it: {_words(error)}; give a certificate of its client CA (--tls-cert)"
        yield Finding("TLS", Verdict.BAD, detail)
        return False
    except OSError as error:
        yield Finding("protocol", Verdict.BAD, f"the connection broke: {error.strerror or error}; {_FOREIGN}")
        return False
    except YetoError as error:
        yield Finding("protocol", Verdict.BAD, f"the answer is not of this protocol: {error}; {_FOREIGN}")
        return False
    else:
        yield Finding("protocol", Verdict.BAD, f"no answer within {ANSWER_S:g} s; {_FOREIGN}")
        return False
    if AuthenticationFailed.says in text and _OTHER_NAME not in text:
        have = "the key of this side is another one" if patient.key else "a key is needed"
        yield Finding("MAC", Verdict.BAD, f"{have}: set YETO_ISLAND_HMAC_KEY to the syncer's key")
        return False
    if VersionMismatch.says in text:
        yield Finding("version", Verdict.BAD, text)
        return False
    if LearnerOutOfRange.says not in text and _OTHER_NAME not in text:
        yield Finding("protocol", Verdict.BAD, f"unexpected answer: {text}")
        return False
    mac = "accepted" if patient.key else "none is needed"
    yield Finding("MAC", Verdict.GOOD, mac)
    yield Finding("version", Verdict.GOOD, f"protocol version {PROTOCOL_VERSION}")
    return True


def _second_probe(patient: Patient, layout: Layout) -> Iterator[Finding]:
    try:
        _knock(patient, _hello(patient, layout, patient.learner_id), SILENCE_S)
    except _RefusedError as refusal:
        text = str(refusal)
        profile = (ProfileMismatch.says, ProfileMissing.says)
        if any(head in text for head in profile):
            yield Finding("profile", Verdict.BAD, text)
        elif LearnerOutOfRange.says in text or _OTHER_NAME in text:
            yield Finding("learner", Verdict.BAD, text)
        else:
            yield Finding("session", Verdict.BAD, text)
    except (OSError, YetoError) as error:
        yield Finding("session", Verdict.BAD, f"the connection ended without a reason: {error}")
    else:
        yield Finding("session", Verdict.GOOD, f"learner {patient.learner_id} is admitted")
        bound = "bound to this profile" if patient.profile else "not bound to one"
        yield Finding("profile", Verdict.GOOD, bound)


def _hello(patient: Patient, layout: Layout, learner_id: int) -> Hello:
    fingerprint = layout.fingerprint()
    return Hello(
        learner_id=learner_id,
        connection_generation=secrets.randbits(63) + 1,
        dtype=patient.dtype,
        layout=layout.wire(),
        layout_fingerprint=fingerprint,
        session_contract_hash=patient.contract or fingerprint,
        syncer_profile_hash=patient.profile,
        num_streams=0,
    )


def _knock(patient: Patient, hello: Hello, patience: float) -> None:
    """Sends a HELLO and waits for a refusal. Returns when none came; raises _RefusedError, OSError or
    WireError.
    """
    reader = FrameReader(Role.LEARNER, Session.from_hello(hello))
    deadline = time.monotonic() + patience
    with _connect(patient) as connection:
        connection.sendall(b"".join(hello_mac.hello_frame(hello, patient.key)))
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                count = connection.recv_into(reader.get_buffer())
            except TimeoutError:
                return
            if not count:
                raise ConnectionResetError("it was closed")
            for message in reader.buffer_updated(count):
                if isinstance(message, Error):
                    raise _RefusedError(message.text)
