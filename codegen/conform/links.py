"""`label`, `after` and `within`: what a step of a scenario may say about order and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["KEYS", "BadLinkError", "Labels", "taken"]

KEYS: Final = ("label", "after", "within")
LABELLED: Final = ("send", "chunks", "bytes", "payload", "join", "attach", "get")
ORDERED: Final = ("get",)
TIMED: Final = ("get", "refused", "ended", "exit", "file", "accept", "steps")
#: It finds implementations that hang, not slow ones, also on a machine that does ten things at once.
WITHIN_S: Final = (10, 120)


class BadLinkError(Exception):
    """What is wrong with these keys of a step."""


def taken(body: Any) -> tuple[dict[str, Any], Any]:
    """These keys of a step, and the rest of it."""
    if not isinstance(body, Mapping):
        return {}, body
    links = {key: body[key] for key in KEYS if key in body}
    return links, {key: value for key, value in body.items() if key not in KEYS}


class Labels:
    """The labels of one scenario."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._named: set[str] = set()

    def declared(self, verb: str, links: Mapping[str, Any]) -> dict[str, Any]:
        """The keys as a trace has them. Raises BadLinkError."""
        found: dict[str, Any] = {}
        if "after" in links:
            found["after"] = self._after(verb, links["after"])
        if "within" in links:
            found["within"] = _within(verb, links["within"])
        if "label" in links:
            found["label"] = self._label(verb, links["label"])
        return found

    def unnamed(self) -> list[str]:
        """The labels that no `after` names."""
        return sorted(self._known - self._named)

    def _after(self, verb: str, names: Any) -> list[str]:
        if verb not in ORDERED:
            raise BadLinkError(f"after belongs to {' or '.join(ORDERED)}, not to {verb}")
        wanted: list[str] = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            if name not in self._known:
                raise BadLinkError(f"after: no step before this one has the label {name!r}")
        self._named |= set(wanted)
        return wanted

    def _label(self, verb: str, label: Any) -> str:
        if verb not in LABELLED:
            raise BadLinkError(f"label belongs to {', '.join(LABELLED)}, not to {verb}")
        if not isinstance(label, str) or not label:
            raise BadLinkError("label must be text")
        if label in self._known:
            raise BadLinkError(f"an earlier step has the label {label!r} too")
        self._known.add(label)
        return label


def _within(verb: str, seconds: Any) -> int | float:
    least, most = WITHIN_S
    if verb not in TIMED:
        raise BadLinkError(f"within belongs to {', '.join(TIMED)}, not to {verb}")
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and least <= seconds <= most:
        return seconds
    raise BadLinkError(f"within must be {least} to {most} seconds: it finds what hangs, not what is slow")
