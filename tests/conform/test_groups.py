"""The runner's end of a connection."""

from __future__ import annotations

import socket
import threading

from tests.unit.wire_samples import session
from yeto_proto._generated.types import Role
from yeto_proto.conform.groups import Wire

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
