"""Runs a conformance case file: `python -m yeto_learner.case CASE.json`.

The file (`spec/files/client_case.yaml`) says the layout, the first values and the update of every local step,
so that whoever plays the syncer knows each delta in advance.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yeto_proto._generated.errors import YetoError
from yeto_proto.layout import Layout

from .learner import Learner

__all__ = ["main", "run"]

F32 = npt.NDArray[np.float32]
NOT_SUPPORTED = 127


def ramp(recipe: Mapping[str, Any], seed: int, shape: tuple[int, ...]) -> F32:
    """The values of a recipe, with this seed, as an array of this shape."""
    numel = int(np.prod(shape, dtype=np.int64))
    steps = ((np.arange(numel, dtype=np.int64) * 7 + seed) % 256 - 128).astype(np.float32)
    values: F32 = (steps / np.float32(128) * np.float32(recipe["scale"])).reshape(shape)
    return values


def tensors(case: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every tensor, in the order of the layout."""
    return [tensor for fragment in case["fragments"] for tensor in fragment["tensors"]]


def learner_of(case: Mapping[str, Any], parameters: Mapping[str, F32]) -> Learner:
    """The learner that the case asks for; its own layout builder must give the layout of the case."""
    shared = [
        tensor["name"]
        for each in case["fragments"]
        if each["merge_mode"] == "avg"
        for tensor in each["tensors"]
    ]
    names = "|".join(re.escape(name) for name in shared)
    return Learner(
        parameters,
        case["address"],
        learner_id=case["learner_id"],
        num_fragments=len(case["fragments"]),
        dtype=case["dtype"],
        num_streams=case["num_streams"],
        merge_alpha=case["merge_alpha"],
        session_contract=bytes.fromhex(case["session_contract"]),
        matrix_merge="iso" if any(each["merge_mode"] == "iso" for each in case["fragments"]) else "rda",
        avg_name_regex=f"^({names})$" if names else None,
        heartbeat_s=1.0,
        finalization_timeout_s=60.0,
    )


def fits(case: Mapping[str, Any], layout: Layout) -> bool:
    """Whether a layout is the one of the case."""
    wanted = [
        (each["merge_mode"], [tensor["name"] for tensor in each["tensors"]]) for each in case["fragments"]
    ]
    built = [
        (each.merge_mode.name.lower(), [tensor.name for tensor in each.tensors]) for each in layout.fragments
    ]
    return wanted == built


def run(case: Mapping[str, Any]) -> int:
    """Train by the case until the run is over; the exit code. Raises what the learner raises."""
    all_tensors = tensors(case)
    parameters = {
        each["name"]: ramp(each["initial"], each["initial"]["seed"], tuple(each["shape"]))
        for each in all_tensors
    }
    learner = learner_of(case, parameters)
    if not fits(case, learner.layout):
        print("error: the layout builder gives another layout than the case has", file=sys.stderr)
        return NOT_SUPPORTED
    update, pause = case["update"], case.get("step_ms", 0) / 1000
    with learner:
        step = 0
        while not learner.done or step < case["steps"]:
            for number, each in enumerate(all_tensors):
                seed = update["seed"] + 1000 * step + number
                parameters[each["name"]] += ramp(update, seed, tuple(each["shape"]))
            step += 1
            learner.step(tokens=case["tokens_per_step"])
            time.sleep(pause)
        learner.finish()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The exit code: what `run` returns, or 1 with one line on standard error."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m yeto_learner.case CASE.json", file=sys.stderr)
        return 2
    try:
        return run(json.loads(Path(given[0]).read_text(encoding="utf-8")))
    except (OSError, RuntimeError, ValueError, KeyError, YetoError) as error:
        print(f"error: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
