"""The status page: one self-contained file, and the state that it asks for every second."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

from yeto_syncer.shell.pages import Page
from yeto_syncer.shell.watch import Watch

SLOT: Final = "null/*state*/"
"""Where the page has room for a state of its own; without one it asks its server."""

JSON: Final = "application/json; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"


def page(state: Mapping[str, Any] | None = None) -> str:
    """The HTML of the page: live, or with the state of a run that is over."""
    text = files("yeto_syncer").joinpath("status.html").read_text(encoding="utf-8")
    if state is None:
        return text
    # In a script element only "<" can end the element or begin a comment.
    return text.replace(SLOT, json.dumps(state, allow_nan=False).replace("<", "\\u003c"), 1)


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
