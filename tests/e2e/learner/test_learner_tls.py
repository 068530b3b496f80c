"""TLS through Python's `ssl`: the same exchange inside it, and certificates that do not fit."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.e2e.learner.rig import failure, until, values
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import SyncerClient
from yeto_learner.channel import TlsChannel
from yeto_proto._generated import messages as wire
from yeto_proto._generated.constants import CHUNK_SLICE
from yeto_proto.layout import build_layout

# A self-signed certificate for 127.0.0.1 that only these tests know.
CERTIFICATE = Path(__file__).with_name("tls_cert.pem")
KEY = Path(__file__).with_name("tls_key.pem")

LAYOUT = build_layout({"w": 3_000_000}, 1)


class Shared:
    """What the scripted syncer needs of a TLS socket, for a thread that reads and one that writes.

    An SSL object is not for two at once.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock, self._channel = sock, TlsChannel(sock)
        self.recv_into, self.setsockopt, self.close = self._channel.recv_into, sock.setsockopt, sock.close

    def sendall(self, data: bytes) -> None:
        self._channel.send_all([data])

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._sock, how)  # of TCP: a TLS goodbye could block


def server_wrap() -> Callable[[socket.socket], socket.socket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return lambda sock: cast(socket.socket, Shared(context.wrap_socket(sock, server_side=True)))


@pytest.fixture
def secure() -> Iterator[ScriptedSyncer]:
    with ScriptedSyncer(wrap=server_wrap()) as syncer:
        yield syncer


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


@pytest.mark.parametrize("streams", [0, 2])
def test_bulk_goes_both_ways_at_once(secure: ScriptedSyncer, streams: int) -> None:
    down, up = values(3_000_000, 1), values(3_000_000, 2)
    with SyncerClient(secure.address, 0, LAYOUT, "f32", streams, tls=trusting()) as client:
        peer = secure.next_peer()
        pusher = threading.Thread(target=client.send_init, args=(0, up))
        pusher.start()
        assert bytes(peer.expect(wire.InitParams).tensor) == up
        pusher.join(WAIT)
        peer.broadcast(0, 1, down)
        until(client, lambda: client.has_updates)
        np.testing.assert_array_equal(
            np.frombuffer(client.drain_updates()[0].data, "<f4"), np.frombuffer(down, "<f4")
        )
        assert len(down) > 2 * CHUNK_SLICE


def test_a_lost_tls_connection_is_dialled_again(secure: ScriptedSyncer) -> None:
    with SyncerClient(secure.address, 0, LAYOUT, "f32", 1, tls=trusting()) as client:
        secure.next_peer().close()
        secure.next_peer()
        client.check_health()


def test_a_certificate_that_is_not_trusted_fails_at_once(secure: ScriptedSyncer) -> None:
    client = SyncerClient(secure.address, 0, LAYOUT, tls=ssl.create_default_context(), connect_timeout=900)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.start()
    client.close()


def test_a_syncer_without_tls_is_not_waited_for_for_ever() -> None:
    with ScriptedSyncer() as plain:
        client = SyncerClient(plain.address, 0, LAYOUT, tls=trusting(), connect_timeout=0.5)
        with pytest.raises(ConnectionError, match="no syncer at"):
            client.start()
        client.close()


def test_closing_ends_a_handshake_that_stalls() -> None:
    with socket.socket() as silent:  # nobody ever answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = SyncerClient(silent.getsockname(), 0, LAYOUT, tls=trusting(), connect_timeout=900)
        errors: list[OSError] = []

        def start() -> None:
            try:
                client.start()
            except OSError as error:
                errors.append(error)

        starter = threading.Thread(target=start)
        starter.start()
        silent.settimeout(WAIT)
        dialled, _ = silent.accept()
        with dialled:
            assert dialled.recv(1)  # the handshake is under way
            client.close()
            starter.join(WAIT)
        assert not starter.is_alive()
        assert isinstance(errors[0], ConnectionAbortedError)


def test_a_key_that_changes_between_redials_is_final(secure: ScriptedSyncer) -> None:
    context = trusting()
    with SyncerClient(secure.address, 0, LAYOUT, "f32", 1, tls=context) as client:
        peer = secure.next_peer()
        client._connection._tls = ssl.create_default_context()
        peer.close()
        assert "CERTIFICATE_VERIFY_FAILED" in str(failure(client))
