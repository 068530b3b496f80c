"""`yeto-checkpoint inspect`: what a file says about itself, quickly, for its values are not read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from yeto_proto.errors_base import YetoError
from yeto_proto.files import marker_path, parse_marker, read_marker, temporary_path
from yeto_syncer.checkpoint.contents import (
    LEDGER_COLUMNS,
    Contents,
    Kind,
    kind_of,
    opened,
    read_contents,
    read_numels,
)

MARKER_MOST = 4096  # bytes of a marker that are looked at; a right one has fewer than 50


class Rows:
    """A list of records that are made when they are wanted: a hostile file may have millions."""

    def __init__(self, count: int, make: Callable[[], Iterable[dict[str, int]]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, int]]:
        return iter(self._make())


def describe(path: Path) -> dict[str, Any]:
    """The file as a JSON object, its lists as `Rows`. Raises NotAFileError, OSError and the errors of its
    reader."""
    with opened(path) as stream:
        kind = kind_of(path, stream)
        about: dict[str, Any] = {"kind": kind.value.replace(" ", "_")}
        if kind is Kind.MARKER:
            return {**about, "global_step": parse_marker(stream.read(MARKER_MOST))}
        if kind is Kind.FINAL_STATE:
            numels = read_numels(stream)
            sizes = Rows(
                len(numels), lambda: ({"id": number, "numel": numel} for number, numel in enumerate(numels))
            )
            return {**about, "bytes": stream.tell(), "numel": sum(numels), "fragments": sizes}
        contents = read_contents(stream)
    unfinished = temporary_path(path)
    return {
        **about,
        **_snapshot(contents),
        "final_marker": marker_of(path),
        "unfinished_write": unfinished.stat().st_size if unfinished.is_file() else None,
    }


def marker_of(checkpoint: Path) -> int | str | None:
    """The step in the marker beside a checkpoint, None without one, or why it cannot be read."""
    if not marker_path(checkpoint).exists():
        return None
    try:
        return read_marker(checkpoint)
    except YetoError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


def _snapshot(contents: Contents) -> dict[str, Any]:
    head, trailer = contents.head, contents.trailer
    return {
        "version": int(head.version),
        "iso_backend": backend_name(head.iso_backend),
        "fingerprint": None if contents.fingerprint is None else contents.fingerprint.hex(),
        "contract": None if trailer.contract is None else trailer.contract.hex(),
        "global_step": head.global_step,
        "bytes": contents.size,
        "numel": contents.numel,
        "fragments": Rows(
            len(contents.numels),
            lambda: (
                {"id": number, "version": version, "numel": numel}
                for number, (version, numel) in enumerate(
                    zip(contents.versions, contents.numels, strict=True)
                )
            ),
        ),
        "ledger": Rows(
            len(contents.ledger),
            lambda: (dict(zip(LEDGER_COLUMNS, entry.item(), strict=True)) for entry in contents.ledger),
        ),
        "trailer": {
            "form": trailer.form.name.lower(),
            "bytes": int(trailer.form),
            "sweep_fragments": trailer.sweep_fragments,
        },
    }


def backend_name(backend: Any) -> str | None:
    """As the syncer's flag spells it; None for a V1 file."""
    return None if backend is None else str(backend.name).lower().replace("_", "-")


def as_json(about: dict[str, Any]) -> Iterator[str]:
    """The text of the object, in parts."""
    for number, (key, value) in enumerate(about.items()):
        yield f"{', ' if number else '{'}{json.dumps(key)}: "
        if isinstance(value, Rows):
            for place, row in enumerate(value):
                yield f"{', ' if place else '['}{json.dumps(row)}"
            yield "]" if len(value) else "[]"
        else:
            yield json.dumps(value)
    yield "}"


def lines(about: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    kind = about["kind"]
    if kind == "final_marker":
        yield f"final marker of global step {about['global_step']}"
        return
    if kind == "final_state":
        yield f"final state, {about['bytes']:,} bytes: f32 parameters and nothing else"
        yield f"{len(about['fragments'])} fragments, {about['numel']:,} values"
        yield from _table(("fragment", "values"), about["fragments"])
        return
    trailer = about["trailer"]
    yield f"checkpoint V{about['version']}, {about['bytes']:,} bytes"
    yield f"global step   {about['global_step']}"
    yield f"iso backend   {about['iso_backend'] or 'not recorded (V1)'}"
    yield f"fingerprint   {about['fingerprint'] or 'not recorded'}"
    yield f"contract      {about['contract'] or 'not recorded'}"
    sweep = trailer["sweep_fragments"]
    yield f"trailer       {trailer['form'].replace('_', ' ')}, {trailer['bytes']} bytes" + (
        f", policy sweep of {sweep} fragments" if sweep is not None else ""
    )
    marker = about["final_marker"]
    if marker is None:
        yield "final marker  none: not the finished end of a run"
    elif marker == about["global_step"]:
        yield "final marker  there: the finished end of its run"
    else:
        yield f"final marker  does not belong to this checkpoint: {marker}"
    if about["unfinished_write"] is not None:
        yield f"beside it     an unfinished write (.tmp) of {about['unfinished_write']:,} bytes"
    yield f"{len(about['fragments'])} fragments, {about['numel']:,} values"
    yield from _table(("fragment", "version", "values"), about["fragments"])
    yield f"ledger of {len(about['ledger'])} learners"
    if len(about["ledger"]):
        yield from _table(("learner", "merges", "steps", "tokens"), about["ledger"])


def _table(titles: tuple[str, ...], rows: Rows) -> Iterator[str]:
    yield "  " + "".join(f"{title:>{_WIDTH}}" for title in titles)
    for row in rows:
        yield "  " + "".join(f"{value:>{_WIDTH},}" for value in row.values())


_WIDTH = 14
