"""What the status port serves: the page, and the state that it asks for every second."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from yeto_syncer.shell.pages import Page
from yeto_syncer.shell.watch import Watch
from yeto_syncer.status_page import page

JSON: Final = "application/json; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"


def status_paths(watch: Watch) -> dict[str, Callable[[], Page]]:
    """What a status port serves."""
    html = page().encode()
    return {
        "/": lambda: Page(HTML, html),
        "/state.json": lambda: Page(JSON, json.dumps(watch.state(), allow_nan=False).encode()),
        "/healthz": healthy,
    }


def healthy() -> Page:
    """The event loop turns: this answer comes from it."""
    return Page("text/plain; charset=utf-8", b"ok\n")
