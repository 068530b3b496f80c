"""What the generator reads beyond the wire, and what it writes: one module per concern.

`LOADERS` read further folders of `spec/` into `spec.parts`; `PARTS` turn the specification into files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from codegen import behaviour, codec_cases, decisions, sequences
from codegen import files as file_texts
from codegen import machines as machine_texts
from codegen import pipes as pipe_texts
from codegen.parts import (
    core,
    corpus,
    files,
    frames,
    kaitai,
    machines,
    pipes,
    rules,
    strategies,
    wireshark,
)
from codegen.render import Output
from codegen.spec import Spec, load_spec

LOADERS: dict[str, Callable[[Path, Spec], Any]] = {
    "machines": machine_texts.load,
    "files": file_texts.load,
    "pipes": pipe_texts.load,
    "behaviour": behaviour.load,
    "sequences": sequences.load,
    "codec_cases": codec_cases.load,
    "decisions": decisions.load,
}
PARTS: tuple[Callable[[Spec], list[Output]], ...] = (
    core.outputs,
    frames.outputs,
    rules.outputs,
    strategies.outputs,
    machines.outputs,
    files.outputs,
    pipes.outputs,
    corpus.outputs,
    kaitai.outputs,
    wireshark.outputs,
)


def load(root: Path) -> Spec:
    """The whole specification with every part. Raises `SpecFault` at the first fault."""
    spec = load_spec(root)
    for name, loader in LOADERS.items():
        spec.parts[name] = loader(root, spec)
    return spec


def outputs(spec: Spec) -> list[Output]:
    """Every file that follows from the specification, with paths relative to the project."""
    return [each for part in PARTS for each in part(spec)]
