"""A small HTTP server for pages that are only read: metrics, status. It runs on the event loop of the syncer.

One request a connection, GET and HEAD only, bounded in every direction: connections, bytes, time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

MAX_CONNECTIONS = 32
MAX_REQUEST = 8192
REQUEST_S = 5.0
"""How long a request may take to arrive."""

ANSWER_S = 10.0
"""How long the client may take to read the answer."""

SECURITY_HEADERS = (
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cache-Control: no-store",
)


@dataclass(frozen=True, slots=True)
class Page:
    """What a path answers with."""

    kind: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


class Pages:
    """Serves `paths`, the first of which is told to people, on a bound socket. On a loopback address a
    request must name this machine as its host: no page of somebody else can have a browser read this one
    under a name of its own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        paths: Mapping[str, Callable[[], Page]],
        broken: Callable[[BaseException], None],
    ) -> None:
        """`broken` is told of a page that could not be made: a defect, which costs that request alone."""
        sock.setblocking(False)
        sock.listen(MAX_CONNECTIONS)  # from here on nobody is refused; the answer comes once the loop turns
        self._loop = loop
        self._sock = sock
        self._paths = paths
        self._broken = broken
        self._guarded = ipaddress.ip_address(str(sock.getsockname()[0]).partition("%")[0]).is_loopback
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def shown(self) -> list[str]:
        """The path that people are told of."""
        return list(self._paths)[:1]

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Serve from the next turn of the loop on."""
        self._starting = self._loop.create_task(self._start())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._arrived, sock=self._sock, limit=MAX_REQUEST)

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = self._loop.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken(error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer(request))
            async with asyncio.timeout(ANSWER_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # TimeoutError is an OSError
            pass
        finally:
            writer.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        try:
            first, *headers = request.decode("latin-1").split("\r\n")
            method, target, version = first.split(" ")
        except ValueError:
            method, target, version, headers = "", "", "", []
        page = self._page(method, target, version, headers)
        lines = [
            f"HTTP/1.1 {page.status.value} {page.status.phrase}",
            f"Content-Type: {page.kind}",
            f"Content-Length: {len(page.body)}",
            "Connection: close",
            *SECURITY_HEADERS,
        ]
        if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head if method == "HEAD" else head + page.body

    def _page(self, method: str, target: str, version: str, headers: list[str]) -> Page:
        if not version.startswith("HTTP/1."):
            return _plain(HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        if self._guarded and not _names_this_machine(headers):
            return _plain(HTTPStatus.FORBIDDEN)
        made = self._paths.get(target.partition("?")[0])
        return _plain(HTTPStatus.NOT_FOUND) if made is None else made()

    def close(self) -> None:
        """Stop serving; what is under way is cut."""
        if self._starting is not None:
            self._starting.cancel()
        for task in self._open:
            task.cancel()
        if self._server is not None:
            self._server.close()
        with suppress(OSError):
            self._sock.close()


def _plain(status: HTTPStatus) -> Page:
    return Page("text/plain; charset=utf-8", f"{status.value} {status.phrase}\n".encode(), status)


def _names_this_machine(headers: list[str]) -> bool:
    hosts = [
        value.strip()
        for name, _, value in (line.partition(":") for line in headers)
        if name.lower() == "host"
    ]
    if len(hosts) != 1:
        return False
    host = hosts[0]
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
