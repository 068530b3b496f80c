"""The HTML of the status page: one self-contained file, live or with the state of a run that is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

SLOT: Final = "null/*state*/"
"""Where the page has room for a state of its own; without one it asks its server."""


def page(state: Mapping[str, Any] | None = None) -> str:
    """The HTML of the page: live, or with the state of a run that is over."""
    text = files("yeto_syncer").joinpath("status.html").read_text(encoding="utf-8")
    if state is None:
        return text
    # In a script element only "<" can end the element or begin a comment.
    return text.replace(SLOT, json.dumps(state, allow_nan=False).replace("<", "\\u003c"), 1)
