"""Whoever looks at a page of the syncer must not be able to end it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from yeto_syncer.shell.pages import Page, Pages

REQUEST = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"


def answers(paths: dict[str, Callable[[], Page]], *asked: str) -> tuple[list[bytes], list[str], list[str]]:
    """What each request is answered with, which defects `Pages` tells, and what reaches the loop."""
    told: list[str] = []
    escaped: list[str] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: escaped.append(context["message"]))
    sock = socket.create_server(("127.0.0.1", 0))
    pages = Pages(loop, sock, paths, lambda error: told.append(repr(error)))
    address = sock.getsockname()

    async def ask(path: str) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST % path.encode())
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def all_of_them() -> list[bytes]:
        return [await ask(path) for path in asked]

    try:
        pages.start()
        return loop.run_until_complete(all_of_them()), told, escaped
    finally:
        pages.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_page_that_cannot_be_made_costs_that_request_alone() -> None:
    def broken() -> Page:
        raise LookupError("no such package")

    paths = {"/bad": broken, "/good": lambda: Page("text/plain", b"all well")}
    (bad, good, again), told, escaped = answers(paths, "/bad", "/good", "/bad")
    assert bad == again == b""
    assert good.startswith(b"HTTP/1.1 200 OK\r\n") and good.endswith(b"\r\n\r\nall well")
    assert told == ["LookupError('no such package')"] * 2
    assert escaped == []
