"""The recording proxy: it stands between real learners and a real syncer and changes nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from .recorder import Connection, Recorder

__all__ = ["Proxy"]

_PIECE = 1 << 20


class Proxy:
    """Takes connections on one address and passes their bytes to another, both ways."""

    def __init__(self, recorder: Recorder, listen: tuple[str, int], connect: tuple[str, int]) -> None:
        """Raises OSError when it cannot listen."""
        self._recorder, self._connect = recorder, connect
        self._started = time.monotonic()
        self._listener = socket.create_server(listen, backlog=512)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._open = 0
        self._taken = 0
        self._run(self._accept)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    @property
    def taken(self) -> int:
        """Connections so far."""
        return self._taken

    def wait_idle(self, quiet: float = 2.0) -> None:
        """Until there were connections, all of them have ended, and no other came for a moment."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._taken > 0 and self._open == 0)
                if not self._changed.wait_for(lambda: self._open > 0, quiet):
                    return

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any function
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                learner, _ = self._listener.accept()
            except OSError:
                return
            try:
                syncer = socket.create_connection(self._connect, timeout=30)
            except OSError:
                learner.close()  # as the syncer would refuse it
                continue
            with self._changed:
                self._open += 1
                self._taken += 1
                self._sockets += [learner, syncer]
                self._changed.notify_all()
            for sock in (learner, syncer):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._run(self._serve, learner, syncer)

    def _serve(self, learner: socket.socket, syncer: socket.socket) -> None:
        connection = self._recorder.connection()
        back = threading.Thread(target=self._pump, args=(connection, "syncer", syncer, learner), daemon=True)
        back.start()
        self._pump(connection, "learner", learner, syncer)
        back.join()
        learner.close()
        syncer.close()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _pump(self, connection: Connection, side: str, source: socket.socket, sink: socket.socket) -> None:
        """Pass on bytes until one end has gone. They are recorded first, so that the trace knows the order of
        cause and effect.
        """
        while True:
            try:
                data = source.recv(_PIECE)
            except OSError:
                data = b""
            now = time.monotonic() - self._started
            if not data:
                connection.end(side, now)
                break
            connection.feed(side, data, now)
            try:
                sink.sendall(data)
            except OSError:
                break
        # A half-closed connection is passed on as one.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
