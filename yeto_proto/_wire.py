"""Building blocks of the generated frame structures: small `construct` classes for runs of fields.

Nothing here knows a number of the wire. Bulk never passes through `construct`, which would copy it:
`FrameStruct` cuts it off first. A refusal is a `YetoError` as soon as it is found; no `construct` error and
no Container leaves this module and `codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from construct import Construct

__all__ = ["Body", "CountedRun", "FixedRun", "FrameStruct", "LayoutRun", "Optional", "ShortInput"]


class ShortInput(Exception):  # noqa: N818
    """The input ends inside a part. `values` are its fields that are complete. Never leaves the codec."""

    def __init__(self, values: Mapping[str, Any], field: str, offset: int) -> None:
        super().__init__(field)
        self.values = values
        self.field = field
        self.offset = offset


class FixedRun(Construct):  # type: ignore[misc]  # construct has no type hints
    """Consecutive fields of fixed size, read and built with one `struct.Struct`. Parses to a dict."""

    def __init__(self, layout: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.struct = struct.Struct(layout)
        self.names = names
        self.formats = [layout[0] + each for each in _split(layout[1:])]
        sizes = [struct.calcsize(each) for each in self.formats]
        self.offsets = tuple(sum(sizes[:index]) for index in range(len(sizes)))
        self.size = self.struct.size
        # Lengths of byte strings, 0 for numbers.
        self.byte_widths = tuple(struct.calcsize(each) if each.endswith("s") else 0 for each in self.formats)

    def unpack(self, buffer: Any) -> tuple[Any, ...]:
        """The fields at the start of a buffer; raises `struct.error` if it is too short."""
        return self.struct.unpack_from(buffer)

    def available(self, data: bytes) -> ShortInput:
        """What a buffer that is too short for the run does hold."""
        values: dict[str, Any] = {}
        for name, form, offset in zip(self.names, self.formats, self.offsets, strict=True):
            if offset + struct.calcsize(form) > len(data):
                return ShortInput(values, name, offset)
            (values[name],) = struct.unpack_from(form, data, offset)
        raise AssertionError("the run is complete")

    def _parse(self, stream: Any, context: Any, path: str) -> dict[str, Any]:
        data = stream.read(self.size)
        if len(data) < self.size:
            raise self.available(data)
        return dict(zip(self.names, self.struct.unpack(data), strict=True))

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        values = [obj[name] for name in self.names]
        for value, name, width in zip(values, self.names, self.byte_widths, strict=True):
            # struct would cut or pad them without a word.
            if width and len(value) != width:
                raise struct.error(f"{name} must be {width} bytes, not {len(value)}")
        stream.write(self.struct.pack(*values))
        return obj

    def _sizeof(self, context: Any, path: str) -> int:
        return self.size


class CountedRun(Construct):  # type: ignore[misc]  # construct has no type hints
    """`count` unsigned integers, read and built by numpy. Parses to a dict with one tuple of ints."""

    def __init__(self, name: str, layout: str, count: str) -> None:
        super().__init__()
        self.names = (name,)
        self.layout = layout
        self.dtype = np.dtype(layout)
        self.count = count

    def _parse(self, stream: Any, context: Any, path: str) -> dict[str, Any]:
        size = self.dtype.itemsize * int(context[self.count])
        # The count is a peer's word: what is left decides before anything is read for it.
        with stream.getbuffer() as everything:
            left = len(everything) - stream.tell()
        if size > left:
            raise ShortInput({}, self.names[0], 0)
        return {self.names[0]: tuple(np.frombuffer(stream.read(size), self.dtype).tolist())}

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        values = obj[self.names[0]]
        stream.write(struct.pack(f"{self.layout[0]}{len(values)}{self.layout[1:]}", *values))
        return obj


class LayoutRun(Construct):  # type: ignore[misc]  # construct has no type hints
    """The numeric layout of HELLO, `count` fragments. `session.WireLayout` parses it, as runs of numpy
    integers.
    """

    def __init__(self, name: str, count: str) -> None:
        super().__init__()
        self.names = (name,)
        self.count = count

    def _parse(self, stream: Any, context: Any, path: str) -> dict[str, Any]:
        # Late: the layout's module needs the generated errors and types, whose package needs this module.
        from .wire_layout import WireLayout

        base = stream.tell()
        session = context.get("session")
        with stream.getbuffer() as everything, everything[base:] as rest:
            known = session.layout if session is not None else None
            layout, used = WireLayout.parse(rest, context[self.count], base=base, known=known)
        stream.seek(base + used)
        return {self.names[0]: layout}

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        stream.write(obj[self.names[0]].to_bytes())
        return obj


class Optional(Construct):  # type: ignore[misc]  # construct has no type hints
    """A run of fields that is there when `present(values, left)` says so, and None otherwise."""

    def __init__(self, run: FixedRun, present: Callable[[Any, int], bool]) -> None:
        super().__init__()
        self.run = run
        self.names = run.names
        self.present = present

    def _parse(self, stream: Any, context: Any, path: str) -> dict[str, Any]:
        if self.present(context, context["left"]):
            return dict(self.run._parsereport(stream, context, path))
        return dict.fromkeys(self.names)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        if any(obj[name] is not None for name in self.names):
            self.run._build(obj, stream, context, path)
        return obj


Part = FixedRun | CountedRun | LayoutRun | Optional
# Called with a field's name before it is read and after it, the values so far, the bytes left, and the
# field's offset.
Judge = Callable[[str, bool, Any, int, int], None]


class Body(Construct):  # type: ignore[misc]  # construct has no type hints
    """Parts in wire order, each field judged as soon as it is known: no part is read on the word of a field
    not yet judged.

    Parses to a dict of all fields, in wire order, and the number of bytes that they took.
    """

    def __init__(self, *parts: Part) -> None:
        super().__init__()
        self.parts = parts

    def read(self, data: Any, judge: Judge, session: Any) -> tuple[dict[str, Any], int]:
        """All fields of a payload and the number of bytes they took.

        Raises ShortInput and what `judge` raises.
        """
        values: dict[str, Any]
        values, used = self.parse(data, judge=judge, session=session)
        return values, used

    def _parse(self, stream: Any, context: Any, path: str) -> tuple[dict[str, Any], int]:
        judge: Judge = context["judge"]
        with stream.getbuffer() as everything:
            end = len(everything)
        values: dict[str, Any] = {}
        for part in self.parts:
            base = stream.tell()
            context["left"] = end - base
            for name in part.names:
                judge(name, True, context, end - base, base)
            offsets = part.offsets if isinstance(part, FixedRun) else (0,) * len(part.names)
            try:
                read = part._parsereport(stream, context, path)
            except ShortInput as short:
                context.update(short.values)
                for name, offset in zip(part.names, offsets, strict=True):
                    if name in short.values:
                        judge(name, False, context, 0, base + offset)
                raise ShortInput({**values, **short.values}, short.field, base + short.offset) from None
            values.update(read)
            context.update(read)
            left = end - stream.tell()
            for name, offset in zip(part.names, offsets, strict=True):
                judge(name, False, context, left, base + offset)
        return values, stream.tell()

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> Any:
        for part in self.parts:
            part._build(obj, stream, context, path)
        return obj


@dataclass(frozen=True, slots=True)
class FrameStruct:
    """What the codec knows of one frame.

    `fixed` is set when the payload is one fixed run, perhaps with bulk after it: then `struct` alone reads
    it. Otherwise `body` does. `make` builds the message from its fields by keyword; `positional` tells that
    the fixed fields and the bulk can be passed in order instead. `derived` are fields of the wire that the
    message computes.
    """

    name: str
    frame_type: int
    header: FixedRun
    make: Callable[..., Any]
    body: Body
    fixed: FixedRun | None
    positional: bool
    bulk: str | None = None
    text: bool = False
    enums: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    headed: struct.Struct = field(init=False)
    fields_of: Callable[[Any], Sequence[Any]] = field(init=False)

    def __post_init__(self) -> None:
        run = self.fixed.struct.format[1:] if self.fixed else ""
        object.__setattr__(self, "headed", struct.Struct(self.header.struct.format + run))
        names = self.fixed.names if self.fixed else ()
        object.__setattr__(self, "fields_of", _getter(names))


def _getter(names: tuple[str, ...]) -> Callable[[Any], Sequence[Any]]:
    """The fields of a message as a tuple, for any number of names."""
    if not names:
        return lambda message: ()
    if len(names) == 1:
        single = attrgetter(names[0])
        return lambda message: (single(message),)
    return attrgetter(*names)


def _split(layout: str) -> Iterable[str]:
    """The single formats of a struct layout: "I32s" gives "I" and "32s"."""
    digits = ""
    for each in layout:
        if each.isdigit():
            digits += each
        else:
            yield digits + each
            digits = ""
