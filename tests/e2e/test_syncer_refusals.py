"""What the server does with peers that are wrong, hostile or silent: one ERROR, one close, and everybody
else goes on."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.e2e.processes import Processes, Syncer, wait_until
from tests.e2e.raw import F32, Raw, Trainer, dial, drive, hello, train
from tests.e2e.test_syncer_run import QUICK, initial, small_layout
from yeto_proto import hello_mac
from yeto_proto._generated.constants import HEADER_BYTES, MAGIC
from yeto_proto._generated.messages import (
    BcastFragment,
    BudgetDone,
    Chunk,
    DataHello,
    Error,
    Heartbeat,
    Hello,
    InitParams,
    Message,
    PullReq,
    PushFragment,
    Shutdown,
)
from yeto_proto._generated.types import Dtype, FrameType
from yeto_proto.codec import encode, header
from yeto_proto.layout import Layout, build_layout
from yeto_syncer.cli import main

ONE = ("--learners", "2", "--total-steps", "4", "--sync-interval-steps", "0", "--min-start-learners", "1")


def frame(message: Message) -> bytes:
    return b"".join(map(bytes, encode(message)))


def error_text(sock: socket.socket) -> str:
    """The ERROR frame that ends this connection."""
    data = b""
    try:
        while block := sock.recv(65536):
            data += block
    except ConnectionResetError:
        # One that comes behind the ERROR is that of a peer which was waited for, and wrote on, for too long.
        assert data, "reset instead of an ERROR"
    assert data, "closed without an ERROR"
    magic, kind, length = struct.unpack_from("<IBQ", data)
    assert (magic, kind, length) == (MAGIC, FrameType.ERROR, len(data) - HEADER_BYTES)
    return data[HEADER_BYTES:].decode()


def refused(syncer: Syncer, first: bytes) -> str:
    """Send these first bytes on a socket of their own; returns the text of the ERROR."""
    with dial(syncer.port) as sock:
        with contextlib.suppress(ConnectionError):  # what it is told is still there to be read
            sock.sendall(first)
        return error_text(sock)


def rounds_beside(learners: list[Trainer], count: int) -> None:
    """Let the learners answer so many more pulls."""
    target = len(learners[0].answered) + count
    drive(learners, lambda: len(learners[0].answered) >= target, f"{count} more rounds")


def finish(syncer: Syncer, trainer: Trainer) -> str:
    """The run of this learner must come to its end, whatever others have sent."""
    train([trainer])
    trainer.close()
    return syncer.finished()


@pytest.mark.rule("hello.protocol_version.must")
def test_first_frames_that_are_no_good(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer(*ONE)
    good = hello(layout, 1)
    other = build_layout({"embed": 300, "other": (40, 20)}, 2)
    admitted = Trainer(syncer.port, hello(layout, 0), target=1.0)
    for first, phrase in (
        (frame(replace(good, protocol_version=3)), "invalid HELLO: protocol version mismatch"),
        (frame(replace(good, learner_id=2)), "outside configured range"),
        (frame(replace(good, connection_generation=0)), "invalid HELLO: "),
        (frame(hello(other, 1)), "session mismatch"),
        (frame(hello(layout, 1, dtype=Dtype.BF16)), "session mismatch"),
        (frame(hello(layout, 1, contract=bytes(32))), "session mismatch"),
        (frame(hello(layout, 1, fingerprint=bytes(32))), "session mismatch"),
        (frame(hello(layout, 1, profile=bytes(32))), "HELLO syncer semantic profile does not match"),
        (frame(hello(layout, 0)), "duplicate connection generation"),
        (frame(PullReq(0, 1, 1)), "invalid first frame"),
        (frame(Heartbeat(1, 1)), "invalid first frame"),
        (frame(Chunk(0, 100, 0, b"x")), "invalid first frame"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "invalid first frame"),
        (bytes(13), "invalid first frame"),
        (header(99, 0), "invalid first frame"),
        (frame(good)[:13] + bytes(len(frame(good)) - 13), "invalid HELLO: "),
        (frame(DataHello(1, 0, 0)), "invalid DATA_HELLO: "),
        (frame(DataHello(0, 1, 0)), "out of bounds"),
    ):
        text = refused(syncer, first)
        assert phrase in text, f"{first[:20]!r}: {text}"
        assert "\n" not in text
    admitted.initialize(initial(layout))
    finish(syncer, admitted)


@pytest.mark.rule("header.len.limit")
def test_a_header_that_announces_too_much_is_answered_without_its_payload(processes: Processes) -> None:
    syncer = processes.syncer(*ONE)
    before = psutil.Process(syncer.pid).memory_info().rss
    for length in (1 << 63, (1 << 64) - 1, (16 << 20) + 1):
        text = refused(syncer, header(FrameType.HELLO, length))
        assert text.startswith("invalid first frame") and "exceeds limit" in text
    text = refused(syncer, header(FrameType.DATA_HELLO, 17))
    assert "exceeds limit" in text
    layout = small_layout()
    for kind in (FrameType.INIT_PARAMS, FrameType.PUSH_FRAGMENT, FrameType.CHUNK, FrameType.HEARTBEAT):
        learner = Raw(syncer.port, hello(layout, 0, generation=10 + kind))
        learner.sockets[-1].sendall(header(kind, 1 << 62))
        assert "exceeds limit" in learner.receive(Error).text
        learner.close()
    assert psutil.Process(syncer.pid).memory_info().rss - before < 8 << 20
    syncer.kill()


def test_bytes_that_follow_a_refused_header_do_not_swallow_the_error(processes: Processes) -> None:
    # The peer is still writing when the answer comes; closing at once would reset the connection.
    syncer = processes.syncer(*ONE)
    text = refused(syncer, header(FrameType.HELLO, 1 << 40) + os.urandom(300_000))
    assert "exceeds limit" in text
    syncer.kill()


@pytest.mark.rule("syncer.handshake.deadline")
def test_silent_sockets_are_closed_in_time(processes: Processes) -> None:
    syncer = processes.syncer(*ONE, "--handshake-timeout-s", "0.5")
    # Stopped, so that what is said is there when the time of a socket begins.
    syncer.signal(signal.SIGSTOP)
    process = psutil.Process(syncer.pid)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the stop")
    with dial(syncer.port) as silent, dial(syncer.port) as half, dial(syncer.port) as early:
        half.sendall(frame(hello(small_layout(), 0))[:40])
        early.sendall(frame(DataHello(1, 77, 0)))
        syncer.signal(signal.SIGCONT)
        assert "unknown learner" in error_text(early)
        for sock in (silent, half):
            while sock.recv(65536):
                pass
    syncer.kill()


@pytest.mark.rule("syncer.handshake.pending")
def test_more_sockets_than_the_cap_wait_in_the_backlog(processes: Processes) -> None:
    syncer = processes.syncer(*ONE, "--max-pending-connections", "2", "--handshake-timeout-s", "0.5")
    started = time.monotonic()
    silent = [dial(syncer.port) for _ in range(6)]
    late = Trainer(syncer.port, hello(small_layout(), 0), target=1.0)
    late.initialize(initial(small_layout()))
    finish(syncer, late)
    # Three generations of two silent sockets each had to time out first. A slow machine only takes longer.
    assert time.monotonic() - started > 1.4
    for sock in silent:
        sock.close()


@pytest.mark.rule("syncer.budget.outside")
@pytest.mark.rule("chunk.streams.either")
@pytest.mark.rule("init_params.initializer")
@pytest.mark.rule("budget_done.exact_local_steps.mode")
def test_admitted_learners_that_break_a_rule_are_told_and_closed(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer("--learners", "2", "--total-steps", "4", "--sync-interval-steps", "0")
    first = Trainer(syncer.port, hello(layout, 0, streams=1), target=1.0)
    generation = 0
    nan = np.full(layout.fragments[0].numel, np.nan, np.float32)
    for message, phrase in (
        (InitParams(0, bytes(4 * layout.fragments[0].numel)), "learner 0"),
        (PushFragment(0, 0, 1, 1, 0, 1, 1, 1, bytes(4 * layout.fragments[0].numel)), "learner"),
        (PushFragment(1, 99, 1, 1, 0, 1, 1, 1, b""), "fragment"),
        (PushFragment(1, 0, 1, 1, 0, 1, 1, 1, b"1234"), "delta"),
        (PushFragment(1, 0, 1, 0, 0, 1, 1, 1, bytes(4 * layout.fragments[0].numel)), "round_attempt"),
        (PushFragment(1, 0, 1, 1, 0, 1, 0, 1, bytes(4 * layout.fragments[0].numel)), "c_steps"),
        (PushFragment(1, 0, 1, 1, 0, 1, 1, 1, nan.tobytes()), "finite"),
        (Heartbeat(0, 5), "learner"),
        (BudgetDone(5), "BUDGET_DONE"),
        (hello(layout, 1, generation=9), "HELLO"),
        (PullReq(0, 1, 1), "PULL_REQ"),
        (Shutdown(), "SHUTDOWN"),
        (Error("x"), "ERROR"),
    ):
        for chunked in (False, True):
            if chunked and isinstance(message, Hello | PullReq | Shutdown | Error):
                phrase = "inner frame"
            generation += 1
            victim = Raw(syncer.port, hello(layout, 1, generation=generation, streams=1))
            (victim.send_bulk if chunked else victim.send)(message)
            text = victim.receive(Error).text
            assert phrase.lower() in text.lower(), f"{message.frame_type.name}: {text}"
            victim.until_ended()
            victim.close()
    second = Trainer(syncer.port, hello(layout, 1, generation=1000), target=1.0)
    first.initialize(initial(layout))
    train([first, second])
    first.close()
    second.close()
    syncer.finished()


@pytest.mark.rule("init_params.tensor.finite")
@pytest.mark.parametrize(
    ("size", "bad"),
    [pytest.param(100, np.nan, marks=pytest.mark.full), (300_000, -np.inf)],
    ids=["inline", "on a thread"],
)
def test_an_init_that_is_not_finite_is_refused_and_may_be_repeated(
    processes: Processes, size: int, bad: float
) -> None:
    layout = build_layout({"embed": size}, 1)
    syncer = processes.syncer("--learners", "1", "--total-steps", "1")
    (values,) = initial(layout)
    values[size // 2] = bad
    for generation, dtype in ((1, Dtype.F32), (2, Dtype.F32)):
        wrong = Raw(syncer.port, hello(layout, 0, generation=generation, dtype=dtype, streams=1))
        wrong.send_bulk(InitParams(0, values.tobytes()))
        assert "finite" in wrong.receive(Error).text
        wrong.close()
    right = Trainer(syncer.port, hello(layout, 0, generation=3, streams=1), target=1.0)
    right.initialize(initial(layout))
    finish(syncer, right)


@pytest.mark.rule("syncer.values.contained")
@pytest.mark.rule("push_fragment.delta.finite")
def test_a_push_that_is_not_finite_leaves_the_merge_of_the_others_bit_identical(processes: Processes) -> None:
    layout = small_layout()
    clean, poisoned = (final_of_the_other(processes, layout, poison) for poison in (False, True))
    assert all(np.array_equal(a, b) for a, b in zip(clean, poisoned, strict=True))


def final_of_the_other(processes: Processes, layout: Layout, poison: bool) -> list[F32]:
    """The final cut of learner 0 beside a learner 1 that leaves, or that answers with an infinity."""
    syncer = processes.syncer("--learners", "2", "--total-steps", "4", "--sync-interval-steps", "0")
    first = Trainer(syncer.port, hello(layout, 0), target=1.0)
    second = Raw(syncer.port, hello(layout, 1))
    first.initialize(initial(layout))
    drive([first, second], lambda: any(isinstance(m, PullReq) for m in second.inbox), "a PULL")
    if poison:
        pull = next(m for m in second.inbox if isinstance(m, PullReq))
        bad = np.zeros(layout.fragments[pull.fragment_id].numel, np.float32)
        bad[-1] = np.inf
        second.send(
            PushFragment(1, pull.fragment_id, pull.global_step, pull.round_attempt, 0, 1, 1, 1, bad.tobytes())
        )
        drive([first, second], lambda: second.ended, "the end of the poisoned learner")
        assert any(isinstance(m, Error) and "finite" in m.text for m in second.inbox)
    second.close()
    train([first])
    first.close()
    syncer.finished()
    return [first.final[number][1] for number in range(4)]


@pytest.mark.rule("syncer.strays.contained")
def test_a_stray_client_cannot_touch_a_run(processes: Processes) -> None:
    # Garbage at every stage, while two learners train.
    layout = small_layout()
    syncer = processes.syncer("--learners", "2", "--total-steps", "200", *QUICK)
    learners = [Trainer(syncer.port, hello(layout, number, streams=1), target=1.0) for number in range(2)]
    learners[0].initialize(initial(layout))
    for _ in range(5):
        for first in (os.urandom(64), header(FrameType.HELLO, 50), frame(DataHello(0, 5, 0)), b"\xde"):
            with dial(syncer.port) as stray:
                stray.sendall(first)
                rounds_beside(learners, 3)
    train(learners)
    for learner in learners:
        learner.close()
    syncer.finished()


@pytest.mark.rule("hello.hello_mac.mac")
def test_with_a_key_every_hello_must_be_sealed_with_it(processes: Processes, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k3y\n")
    layout = small_layout()
    syncer = processes.syncer(*ONE, "--island-hmac-key-file", str(key))
    plain = frame(hello(layout, 1))
    body = plain[HEADER_BYTES:]

    def sealed(secret: bytes) -> bytes:
        payload = hello_mac.seal(body, secret)
        return header(FrameType.HELLO, len(payload)) + payload

    for first in (plain, sealed(b"other"), header(FrameType.HELLO, 5) + b"12345"):
        assert refused(syncer, first).startswith("HELLO authentication failed")
    with dial(syncer.port) as good:
        good.sendall(sealed(b"k3y"))
        syncer.stderr.wait_for("learner connected learner=1")
    syncer.kill()


def test_the_key_may_come_from_the_environment(processes: Processes) -> None:
    syncer = processes.syncer(*ONE, environ={"YETO_ISLAND_HMAC_KEY": "k3y"})
    assert refused(syncer, frame(hello(small_layout(), 0))).startswith("HELLO authentication failed")
    syncer.kill()


@pytest.mark.rule("hello.syncer_profile_hash.required")
def test_profile_binding(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*ONE, "--require-profile-binding")
    layout = small_layout()
    syncer = processes.syncer(*flags)
    missing = refused(syncer, frame(hello(layout, 0)))
    assert missing.startswith("HELLO is missing the required syncer semantic profile")
    assert main([*flags, "--print-profile"], {}) == 0
    profile = bytes.fromhex(capsys.readouterr().out.strip())
    syncer.stderr.wait_for(f"listening .*profile={profile.hex()} binding=True")
    bound = Trainer(syncer.port, hello(layout, 0, profile=profile), target=1.0)
    bound.initialize(initial(layout))
    finish(syncer, bound)


@pytest.mark.rule("data_hello.stream_idx.free")
def test_a_wrong_data_socket_leaves_the_control_socket_alone(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer(*ONE)
    learner = Trainer(syncer.port, hello(layout, 0, streams=2), target=1.0)
    syncer.stderr.wait_for("learner connected")
    for index, phrase in ((0, "duplicate data stream index"), (2, "out of bounds")):
        assert phrase in refused(syncer, frame(DataHello(0, 1, index)))
    learner.initialize(initial(layout))
    finish(syncer, learner)


class Told(Trainer):
    """A learner that goes on when it is told of an error."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.errors: list[Error] = []

    def react(self) -> None:
        told = [message for message in self.inbox if isinstance(message, Error)]
        for error in told:
            self.inbox.remove(error)
        self.errors += told
        super().react()


@pytest.mark.rule("syncer.data_stream.error")
@pytest.mark.parametrize(
    ("bad", "phrase"),
    [
        pytest.param(b"\xff" * HEADER_BYTES, "bad magic", marks=pytest.mark.full),
        (frame(Chunk(7, 100, 200, b"x")), "beyond its message"),
        pytest.param(frame(Heartbeat(1, 5)), "does not match", marks=pytest.mark.full),
    ],
    ids=["bytes", "chunk", "message"],
)
def test_an_error_on_a_data_socket_ends_that_socket_alone(
    processes: Processes, bad: bytes, phrase: str
) -> None:
    layout = small_layout()
    syncer = processes.syncer(*ONE)
    for generation in range(1, 6):
        learner = Told(syncer.port, hello(layout, 0, generation=generation, streams=2), target=1.0)
        syncer.stderr.wait_for(f"learner connected learner=0 generation={generation}\\b")
        learner.sockets[1].sendall(bad)
        drive([learner], lambda told=learner: bool(told.errors), "the ERROR on the control stream")
        assert phrase in learner.errors[0].text
        syncer.stderr.wait_for(f"data stream closed.*learner=0 generation={generation}")
        if not learner.ended:
            break
        learner.close()  # this process was held up for so long that it saw both at once: another time
    assert not learner.ended, "the data socket is open until then"
    assert learner.sockets.pop(1).recv(1) == b"", "and then it ends"
    learner.initialize(initial(layout))
    said = finish(syncer, learner).split("training complete")[0]
    assert f"learner left learner=0 generation={generation}" not in said


@pytest.mark.rule("hello.connection_generation.retired")
def test_a_generation_number_is_used_once(processes: Processes) -> None:
    layout = small_layout()
    syncer = processes.syncer(*ONE)
    Raw(syncer.port, hello(layout, 1, generation=7)).close()
    syncer.stderr.wait_for("learner left.*generation=7")
    assert "generation" in refused(syncer, frame(hello(layout, 1, generation=7)))
    syncer.kill()


@pytest.mark.rule("syncer.hello.bounded")
def test_a_hello_of_16_mib_does_not_hold_up_others(processes: Processes) -> None:
    # A million fragments of one tensor each. The learner beside it goes on training meanwhile.
    layout = small_layout()
    syncer = processes.syncer(
        "--learners",
        "2",
        "--total-steps",
        "1000000",  # no end before the verdict, however long that takes
        "--sync-interval-steps",
        "0",
        "--quorum",
        "1",
        "--min-start-learners",
        "1",
        "--handshake-timeout-s",
        "600",  # sixteen megabytes take their time
    )
    learner = Trainer(syncer.port, hello(layout, 0), target=1.0)
    learner.initialize(initial(layout))
    drive([learner], lambda: len(learner.answered) >= 5, "the first rounds")
    count = ((16 << 20) - 200) // 13
    fragment = struct.pack("<BIQ", 0, 1, 4)
    payload = struct.pack("<HIQBI", 4, 1, 1, 1, count) + fragment * count + bytes(64) + struct.pack("<H", 0)
    beside = 0
    for _ in range(10):  # one is enough unless the verdict is there before this process gets its turn again
        with dial(syncer.port) as big:
            big.sendall(header(FrameType.HELLO, len(payload)) + payload)
            before = len(learner.answered)
            drive([learner], lambda sock=big: bool(select.select([sock], [], [], 0)[0]), "the verdict")
            beside = len(learner.answered) - before
            assert "session mismatch" in error_text(big)
        if beside:
            break
    assert beside, "the learner's rounds stood still"
    syncer.signal(signal.SIGTERM)
    drive([learner], lambda: learner.ended, "its end")
    learner.close()
    syncer.finished()
    assert any(isinstance(message, BcastFragment) for _, message in learner.seen)
