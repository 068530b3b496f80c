"""Dialling: several addresses of one name, a resolver that does not answer, and a peer that does not read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e.learner.rig import SMALL
from tests.e2e.processes import reserved_port
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import SyncerClient, channel
from yeto_learner.channel import Place, dial


@pytest.fixture
def deaf() -> Iterator[int]:
    """The port of a listener whose backlog is full, so that no further connection is answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = []
        while True:
            sock = socket.socket()
            sock.settimeout(0.3)
            waiting.append(sock)
            try:
                sock.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield port
        for sock in waiting:
            sock.close()


def place(port: int, family: int = socket.AF_INET) -> Place:
    return Place(family, socket.SOCK_STREAM, 0, ("127.0.0.1", port))


def dialled(monkeypatch: pytest.MonkeyPatch, places: list[Place], timeout: float) -> None:
    monkeypatch.setattr(channel, "resolve", lambda address, flags=0: places)
    dial(("syncer.example", 1), timeout, None, lambda: False).close()


def test_an_address_that_never_answers_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch, deaf: int
) -> None:
    shares: list[float] = []
    connect = channel._dial_one

    def noting(*arguments: object) -> object:
        begun = time.monotonic()
        try:
            return connect(*arguments)  # type: ignore[arg-type]
        finally:
            shares.append(time.monotonic() - begun)

    monkeypatch.setattr(channel, "_dial_one", noting)
    with ScriptedSyncer() as syncer:
        dialled(monkeypatch, [place(deaf), place(syncer.port)], 6.0)
    assert len(shares) == 2
    assert shares[0] >= 2.9  # its half, and no more than that was taken from the other


def test_a_family_that_this_machine_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedSyncer() as syncer:
        dialled(monkeypatch, [place(1, family=255), place(syncer.port)], WAIT)


def test_the_last_failure_is_told_when_all_addresses_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_port() as port, pytest.raises(ConnectionRefusedError):
        dialled(monkeypatch, [place(1, family=255), place(port)], WAIT)


def test_closing_does_not_wait_for_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, released = threading.Event(), threading.Event()
    resolve = channel.resolve

    def held(address: tuple[str, int], flags: int = 0) -> list[Place]:
        if not flags:
            asked.set()
            assert released.wait(WAIT)
        return resolve(address, socket.AI_NUMERICHOST)

    monkeypatch.setattr(channel, "resolve", held)
    client = SyncerClient("syncer.example:29400", 0, SMALL, connect_timeout=WAIT)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            client.start()
        except ConnectionError as error:
            errors.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    assert asked.wait(WAIT)
    client.close()
    starter.join(WAIT)
    assert not starter.is_alive()
    assert len(errors) == 1
    assert not released.is_set()  # all that came to pass while the resolver had not answered
    released.set()
    for thread in threading.enumerate():
        if thread.name == "yeto-resolve":
            thread.join(WAIT)


def test_a_resolver_that_is_late_is_an_error_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def held(address: tuple[str, int], flags: int = 0) -> list[Place]:
        if not flags:
            assert released.wait(WAIT)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(channel, "resolve", held)
    with pytest.raises(TimeoutError, match=r"syncer\.example was not resolved in time"):
        dial(("syncer.example", 1), 0.1, None, lambda: False)
    released.set()
    with pytest.raises(socket.gaierror, match="no such name"):
        dial(("syncer.example", 1), WAIT, None, lambda: False)
    for thread in threading.enumerate():
        if thread.name == "yeto-resolve":
            thread.join(WAIT)


def test_closing_ends_a_greeting_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        client = SyncerClient(f"127.0.0.1:{port}", 0, SMALL, num_streams=0, connect_timeout=WAIT)
        # More than all buffers on the way hold.
        monkeypatch.setattr(client._connection, "_hello_frame", lambda hello, index: [bytes(64 << 20)])
        errors: list[BaseException] = []

        def start() -> None:
            try:
                client.start()
            except OSError as error:
                errors.append(error)

        starter = threading.Thread(target=start)
        starter.start()
        accepted, _ = listener.accept()
        with accepted:
            client.close()
            starter.join(WAIT)
            assert not starter.is_alive()
        assert len(errors) == 1
