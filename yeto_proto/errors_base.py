"""The root of the error tree. `_generated/errors.py` holds the classes, from `spec/errors.yaml`."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["YetoError"]

_LONGEST_SEEN = 80


class YetoError(Exception):
    """A refusal, with everything that a program needs to act on it.

    `rule` is the id of the rule that was broken, `frame` and `field` say where it stands in the
    specification, and `offset` is the field's first byte, counted from the start of the payload (of the file,
    in file errors). `limit` is what the rule compares with and `seen` what was there instead. `detail` is for
    people, and so is the text of the error: code decides by the class.
    """

    #: Whether the connection that caused it ends.
    fatal: ClassVar[bool] = True
    #: Whether an ERROR frame with the text is sent before it ends.
    sends: ClassVar[bool] = False
    #: Whether the text inside HELLO and DATA_HELLO starts with "invalid HELLO: " or "invalid DATA_HELLO: ".
    prefixed: ClassVar[bool] = False
    #: Head of the text.
    says: ClassVar[str] = "refused"

    def __init__(
        self,
        *,
        rule: str | None = None,
        frame: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        limit: object = None,
        seen: object = None,
        detail: str = "",
        prefix: str = "",
    ) -> None:
        super().__init__(detail)
        self.rule = rule
        self.frame = frame
        self.field = field
        self.offset = offset
        self.limit = limit
        self.seen = seen
        self.detail = detail
        self.prefix = prefix

    def __str__(self) -> str:
        prefix = self.prefix
        if not prefix and self.prefixed and self.frame in ("HELLO", "DATA_HELLO"):
            prefix = f"invalid {self.frame}: "
        parts = [f"{prefix}{self.says}"]
        if self.detail:
            parts.append(self.detail)
        place = ".".join(part for part in (self.frame, self.field) if part)
        if place:
            parts.append(place if self.offset is None else f"{place} at byte {self.offset}")
        if self.seen is not None:
            parts.append(f"got {_short(self.seen)}")
        if self.limit is not None:
            parts.append(f"limit {_short(self.limit)}")
        if self.rule:
            parts.append(f"rule {self.rule}")
        return parts[0] + (f": {', '.join(parts[1:])}" if len(parts) > 1 else "")

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments: the default would pickle only `args`, and a worker process could not report.
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(kind: type[YetoError], state: dict[str, object]) -> YetoError:
    error = kind()
    error.__dict__.update(state)
    return error


def _short(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        text = bytes(value[:_LONGEST_SEEN]).hex()
    else:
        text = str(value)
    # One line, whatever a peer put into it.
    text = " ".join(text.split()) if text.isprintable() else ascii(text)
    return text if len(text) <= _LONGEST_SEEN else f"{text[:_LONGEST_SEEN]}..."
