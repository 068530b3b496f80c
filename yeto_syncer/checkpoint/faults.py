"""Faults of a file, each with its place, what should stand there and what does."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from yeto_proto.errors_base import YetoError


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `offset` counts bytes from the start of the file; `rule` is the id in the
    specification, where there is one."""

    what: str
    field: str
    offset: int | None = None
    expected: str | None = None
    seen: str | None = None
    rule: str | None = None

    @classmethod
    def of(cls, error: YetoError, *, offset: int | None = None) -> Fault:
        """What a reader or a check has refused. `offset` is used when the error does not know it."""
        where = error.offset if error.offset is not None else offset
        what = f"{error.says}: {error.detail}" if error.detail else error.says
        return cls(what, error.field or "file", where, _text(error.limit), _text(error.seen), error.rule)

    def line(self) -> str:
        """For people."""
        place = self.field if self.offset is None else f"{self.field} at byte {self.offset}"
        parts = [f"{place}: {self.what}"]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.seen is not None:
            parts.append(f"seen {self.seen}")
        if self.rule is not None:
            parts.append(f"rule {self.rule}")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
