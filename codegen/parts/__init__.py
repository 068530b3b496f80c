"""What the generator writes, one module per concern. Each has `outputs(spec) -> list[Output]`."""

from __future__ import annotations

from collections.abc import Callable

from codegen.parts import core
from codegen.render import Output
from codegen.spec import Spec

PARTS: tuple[Callable[[Spec], list[Output]], ...] = (core.outputs,)


def outputs(spec: Spec) -> list[Output]:
    """Every file that follows from the specification, with paths relative to the project."""
    return [each for part in PARTS for each in part(spec)]
