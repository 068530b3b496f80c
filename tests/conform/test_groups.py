"""The runner's end of a connection."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conform.runs import TRACES
from tests.unit.wire_samples import session
from yeto_proto._generated.messages import Error, Shutdown
from yeto_proto._generated.types import Role
from yeto_proto.conform.groups import Wire
from yeto_proto.conform.player import Player
from yeto_proto.conform.verdict import FailError, Result
from yeto_proto.writer import frame

LAST_WORDS = b"the last words"
UNREAD = bytes(1 << 16)


def test_a_peer_reads_the_last_words_although_its_own_were_not_read():
    # A plain close with unread bytes resets the connection. A peer that is writing then may see the reset
    # before it reads why, and dials again instead of giving up.
    wire = Wire(Role.SYNCER, session(4), "recorded", lambda line: None)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        wire.dial("a", 0, server.getsockname()[1])
        peer, _ = server.accept()
    peer.settimeout(600)
    sent = threading.Event()

    def listen() -> None:
        peer.sendall(UNREAD)
        sent.set()
        closing.wait(600)
        try:
            while data := peer.recv(4096):
                heard.append(data)
        except ConnectionResetError:
            heard.append(b"a reset")
        peer.close()

    closing = threading.Event()
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert sent.wait(600)
    wire.send("a.0", [LAST_WORDS])
    closing.set()
    wire.close("a")
    thread.join(600)
    wire.close_all()
    assert b"".join(heard) == LAST_WORDS


class Learner(Player):
    """Plays a learner against a process that has ended."""

    played = "learner"
    role = Role.LEARNER


def after_its_end(*frames: bytes) -> Learner:
    """A player whose peer has written these frames, closed, and exited before anything was read."""
    trace = next(each for each in TRACES if each.id == "run-two-steps")
    player = Learner(trace, Result(trace), Path(), 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        player.wire.dial("a", 0, server.getsockname()[1])
        peer, _ = server.accept()
    peer.sendall(b"".join(frames))
    peer.close()
    player.process = cast(Any, SimpleNamespace(code=0, output=""))
    return player


GOODBYE = b"".join(bytes(part) for part in frame(Shutdown()))
WANTED = {"do": "frame", "on": "a", "from": "syncer", "frame": "SHUTDOWN", "fields": {}}


def test_what_a_process_wrote_before_its_end_is_read_although_it_has_gone():
    player = after_its_end(GOODBYE)
    player.frame(WANTED)
    player.close()


def test_what_it_did_not_write_is_missed_at_once():
    player = after_its_end()
    with pytest.raises(FailError, match="the connection ended"):
        player.frame(WANTED)
    player.close()


def test_a_refusal_by_a_process_that_has_gone_counts():
    player = after_its_end(b"".join(bytes(part) for part in frame(Error("no"))))
    player.refused({"do": "refused", "on": "a.0", "error": "WrongLearner"})
    assert player.result.closing is not None and player.result.closing.value == "pass"
    player.close()
