"""TLS between real processes: whole runs, certificates that name learners, handshakes that stall or fail."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.authority import Authority
from tests.e2e.processes import Processes, Syncer
from tests.e2e.raw import Trainer, dial, drive, hello
from tests.e2e.test_learner_real_syncer import QUICK, STEPS, Fleet, parameters
from yeto_learner import Learner
from yeto_proto._generated.constants import HEADER_BYTES
from yeto_proto._generated.messages import DataHello, Error, Message
from yeto_proto._generated.types import Role
from yeto_proto.codec import encode
from yeto_proto.files import read_snapshot
from yeto_proto.layout import build_layout
from yeto_proto.reader import FrameReader
from yeto_proto.session import Session

WAIT = 300.0
LAYOUT = build_layout({"w": 64}, 1)
ALONE = ("--learners", "1", "--total-steps", "1")
KEY = "correct horse battery staple"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    """A CA that the syncer does not know."""
    return Authority(tmp_path / "other")


@contextlib.contextmanager
def secured(port: int, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with context.wrap_socket(dial(port), server_hostname="127.0.0.1") as sock:
        yield sock


def say(sock: ssl.SSLSocket, message: Message) -> None:
    sock.sendall(b"".join(bytes(buffer) for buffer in encode(message)))


def hear_error(sock: ssl.SSLSocket) -> str:
    """The text of the ERROR that comes before the end."""
    reader = FrameReader(Role.LEARNER, Session.from_hello(hello(LAYOUT, 0)))
    while True:
        data = sock.recv(HEADER_BYTES)
        if not data:
            raise ConnectionResetError("it ended without a word")
        for message in reader.feed(data):
            assert isinstance(message, Error)
            return message.text


def undisturbed(syncer: Syncer, authority: Authority) -> None:
    """A learner with its certificate trains the run to its end."""
    arrays = {"w": np.zeros(64, np.float32)}
    with Learner(
        arrays,
        f"127.0.0.1:{syncer.port}",
        learner_id=0,
        num_fragments=1,
        num_streams=1,
        session_contract="a test",
        tls=authority.learner(0),
        connect_timeout_s=WAIT,
    ) as learner:
        pause = threading.Event()
        while not learner.done:
            arrays["w"] += np.float32(1)
            learner.step(tokens=1)
            pause.wait(0.002)
        learner.finish()
    syncer.finished()


@pytest.mark.parametrize(
    ("dtype", "streams", "mutual"), [pytest.param("f32", 0, False, marks=pytest.mark.full), ("bf16", 2, True)]
)
def test_a_whole_run(
    processes: Processes, tmp_path: Path, authority: Authority, dtype: str, streams: int, mutual: bool
) -> None:
    path = tmp_path / "state.ckpt"
    syncer = processes.syncer(
        *("--learners", "2", *QUICK, "--checkpoint-path", str(path)), *authority.flags(mutual=mutual)
    )
    fleet = Fleet()
    both = authority.client("yeto:learner:0", "yeto:learner:1")
    fleet.start(f"127.0.0.1:{syncer.port}", dtype=dtype, num_streams=streams, tls=both)
    fleet.join()
    syncer.finished()
    snapshot = read_snapshot(path)
    assert snapshot.global_step == STEPS
    for number in range(2):
        for mine, state in zip(fleet.flat(number), snapshot.fragments, strict=True):
            np.testing.assert_array_equal(mine, state.params)
    assert sum(array.size for array in parameters(0).values()) == sum(len(f) for f in fleet.flat(0))


def test_bulk_that_the_kernel_cannot_take_at_once(processes: Processes, authority: Authority) -> None:
    # 16 MB each way: segments are kept back and taken up again, and nothing is lost.
    arrays = {"w": np.arange(4_000_000, dtype=np.float32)}
    syncer = processes.syncer(*ALONE, *authority.flags(mutual=False))
    with Learner(
        arrays,
        f"127.0.0.1:{syncer.port}",
        learner_id=0,
        num_fragments=1,
        num_streams=2,
        dtype="f32",
        session_contract="a test",
        tls=authority.client(),
        connect_timeout_s=WAIT,
        initial_cut_timeout_s=WAIT,
        finalization_timeout_s=WAIT,
    ) as learner:
        pause = threading.Event()
        while not learner.done:
            learner.step(tokens=1)
            pause.wait(0.002)
        learner.finish()
    syncer.finished()
    np.testing.assert_array_equal(arrays["w"], np.arange(4_000_000, dtype=np.float32))


@pytest.mark.rule("syncer.tls.learner_name")
class TestNames:
    """With --tls-client-ca, every socket of a group shows a certificate that names its learner."""

    @pytest.fixture
    def syncer(self, processes: Processes, authority: Authority) -> Syncer:
        return processes.syncer(*ALONE, *authority.flags(mutual=True))

    def test_a_hello_under_another_name(self, syncer: Syncer, authority: Authority) -> None:
        for uri in ("yeto:learner:1", "yeto:learner:00", "urn:learner:0"):
            with secured(syncer.port, authority.client(uri)) as sock:
                say(sock, hello(LAYOUT, 0))
                text = hear_error(sock)
            assert text.startswith("HELLO authentication failed")
            assert "certificate does not name learner 0" in text
        undisturbed(syncer, authority)

    def test_a_data_socket_under_another_name(self, syncer: Syncer, authority: Authority) -> None:
        with secured(syncer.port, authority.client("yeto:learner:5")) as sock:
            say(sock, DataHello(learner_id=0, connection_generation=1, stream_idx=0))
            assert "certificate does not name learner 0 (it names: 5)" in hear_error(sock)
        undisturbed(syncer, authority)

    def test_no_certificate(self, syncer: Syncer, authority: Authority) -> None:
        # TLS 1.3 tells the client only after its side of the handshake is done.
        with (
            pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
            secured(syncer.port, authority.client()) as sock,
        ):
            sock.recv(1)
        assert "did not return a certificate" in syncer.stderr.wait_for("TLS: ").string
        undisturbed(syncer, authority)

    def test_a_certificate_of_another_authority(
        self, syncer: Syncer, authority: Authority, other: Authority
    ) -> None:
        context = authority.client()
        context.load_cert_chain(other.issue(("yeto:learner:0",)))
        with pytest.raises(ssl.SSLError), secured(syncer.port, context) as sock:
            sock.recv(1)
        assert "certificate verify failed" in syncer.stderr.wait_for("TLS: ").string
        undisturbed(syncer, authority)

    def test_a_certificate_whose_time_is_over(self, syncer: Syncer, authority: Authority) -> None:
        context = authority.client("yeto:learner:0", expired=True)
        with pytest.raises(ssl.SSLError), secured(syncer.port, context) as sock:
            sock.recv(1)
        assert "certificate has expired" in syncer.stderr.wait_for("TLS: ").string
        undisturbed(syncer, authority)


def test_what_is_no_tls_is_refused_and_the_run_goes_on(processes: Processes, authority: Authority) -> None:
    syncer = processes.syncer(*ALONE, *authority.flags(mutual=True))
    for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\xff\xff" + b"x" * 100):
        with dial(syncer.port) as sock:
            sock.sendall(junk)
            while sock.recv(4096):
                pass
    syncer.stderr.wait_for("connection refused.*TLS: ", count=3)
    old = ssl.create_default_context(cafile=str(authority.ca))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), secured(syncer.port, old):
        pass
    undisturbed(syncer, authority)


def test_a_handshake_that_stalls_ends_with_its_time_and_blocks_nobody(
    processes: Processes, authority: Authority
) -> None:
    flags = ("--handshake-timeout-s", "3600", *authority.flags(mutual=True))
    syncer = processes.syncer("--learners", "1", "--total-steps", "3", *QUICK[2:], "--quorum", "1", *flags)
    outgoing = ssl.MemoryBIO()
    client = authority.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    greeting = outgoing.read()
    stalled = [dial(syncer.port) for _ in range(20)]
    for number, sock in enumerate(stalled):
        sock.sendall(greeting[: len(greeting) * number // 19])  # from nothing to all of the first flight
    undisturbed(syncer, authority)
    for sock in stalled:
        sock.close()


@pytest.mark.rule("syncer.handshake.deadline")
def test_the_handshake_time_covers_tls(processes: Processes, authority: Authority) -> None:
    syncer = processes.syncer(*ALONE, "--handshake-timeout-s", "5", *authority.flags(mutual=False))
    with dial(syncer.port) as silent:
        for _ in range(10):  # a machine that needs more than this time for a handshake gets another one
            with contextlib.suppress(OSError), secured(syncer.port, authority.client()) as shaken:
                assert "handshake timeout" in hear_error(shaken)
                break
        else:
            raise AssertionError("no handshake came to its end")
        assert silent.recv(1) == b""
    syncer.stderr.wait_for("connection refused.*handshake timeout", count=2)
    undisturbed(syncer, authority)


def test_an_address_that_fails_too_often_is_turned_away_and_others_are_not(
    processes: Processes, authority: Authority
) -> None:
    syncer = processes.syncer(*ALONE, "--max-failed-handshakes", "3", *authority.flags(mutual=True))

    def fail() -> None:
        with dial_from("127.0.0.9", syncer.port) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(bytes(64))
            while sock.recv(4096):
                pass

    began = time.monotonic()
    tries = 0
    while "turned away for a while" not in syncer.stderr.text:
        fail()
        tries += 1
        assert tries < 100
    syncer.stderr.wait_for("turned away for a while.*host=127.0.0.9")
    for _ in range(20):
        fail()
    undisturbed(syncer, authority)
    forgiven = (time.monotonic() - began) / 20
    assert len([line for line in syncer.stderr.lines if "TLS: " in line]) <= 3 + forgiven + 1


def dial_from(host: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT, source_address=(host, 0))


def test_a_plain_learner_does_not_get_in(processes: Processes, authority: Authority) -> None:
    syncer = processes.syncer(*ALONE, *authority.flags(mutual=False))
    plain = Trainer(syncer.port, hello(LAYOUT, 0), target=1.0)
    drive([plain], lambda: plain.ended, "the end of a plain connection")
    syncer.stderr.wait_for("connection refused.*TLS: ")
    undisturbed(syncer, authority)


def test_key_and_tls_go_together(processes: Processes, authority: Authority) -> None:
    syncer = processes.syncer(*ALONE, *authority.flags(mutual=True), environ={"YETO_ISLAND_HMAC_KEY": KEY})
    with secured(syncer.port, authority.learner(0)) as sock:
        say(sock, hello(LAYOUT, 0))
        assert hear_error(sock).startswith("HELLO authentication failed")
    arrays = {"w": np.zeros(64, np.float32)}
    with Learner(
        arrays,
        f"127.0.0.1:{syncer.port}",
        learner_id=0,
        num_fragments=1,
        session_contract="a test",
        tls=authority.learner(0),
        hmac_key=KEY,
    ) as learner:
        while not learner.done:
            learner.step(tokens=1)
        learner.finish()
    syncer.finished()


class TestStart:
    """What the command line says about TLS files."""

    def refused(self, processes: Processes, *flags: str) -> str:
        syncer = processes.syncer_command(*ALONE, "--port", "0", *flags)
        return syncer.finished(code=1)

    def test_a_certificate_without_its_key(self, processes: Processes, authority: Authority) -> None:
        text = self.refused(processes, "--tls-cert", str(authority.certificate))
        assert (
            text
            == "error: --tls-cert is given without --tls-key; --tls-key; give both --tls-cert and --tls-key"
        )

    def test_a_client_ca_alone(self, processes: Processes, authority: Authority) -> None:
        text = self.refused(processes, "--tls-client-ca", str(authority.ca))
        assert text.startswith("error: --tls-client-ca is given without --tls-cert; --tls-cert; ")

    def test_a_file_that_is_not_there(self, processes: Processes, authority: Authority) -> None:
        text = self.refused(processes, "--tls-cert", "none.pem", "--tls-key", str(authority.key))
        assert text == (
            "error: cannot read none.pem: No such file or directory; --tls-cert; give a file that can be read"
        )

    @pytest.mark.rule("syncer.bind.authenticated")
    @pytest.mark.parametrize("mutual", [False, True])
    def test_tls_allows_other_addresses(
        self, processes: Processes, authority: Authority, mutual: bool
    ) -> None:
        syncer = processes.syncer_command(
            *ALONE, "--host", "0.0.0.0", "--port", "0", *authority.flags(mutual=mutual)
        )
        syncer.stdout.wait_for(r"^listening on 0\.0\.0\.0:")
        syncer.kill()  # all that it said is here now
        warned = "anybody who reaches this address can join" in syncer.stderr.text
        assert warned == (not mutual)
