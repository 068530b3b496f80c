"""Client case files for the raw learner, and what it pushes in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FRAGMENTS: list[dict[str, Any]] = [
    {
        "merge_mode": "avg",
        "tensors": [
            {"name": "embed", "shape": [30, 10], "initial": {"gen": "ramp", "seed": 3, "scale": 1.0}}
        ],
    },
    {
        "merge_mode": "rda",
        "tensors": [
            {"name": "a.weight", "shape": [40, 20], "initial": {"gen": "ramp", "seed": 5, "scale": 0.5}},
            {"name": "ä.bias", "shape": [], "initial": {"gen": "ramp", "seed": 8, "scale": 2.0}},
        ],
    },
    {
        "merge_mode": "iso",
        "tensors": [{"name": "w", "shape": [6, 4], "initial": {"gen": "ramp", "seed": 9, "scale": 1.0}}],
    },
]


def write_case(folder: Path, port: int, learner_id: int, **changes: Any) -> str:
    """A case file for this learner; returns its path."""
    case = {
        "format": 1,
        "address": f"127.0.0.1:{port}",
        "learner_id": learner_id,
        "dtype": "f32",
        "num_streams": 0,
        "merge_alpha": 0.0,
        "session_contract": "07" * 32,
        "fragments": FRAGMENTS,
        "steps": 1,
        "update": {"gen": "ramp", "seed": 11, "scale": 0.0078125},
        "tokens_per_step": 64,
        "step_ms": 5,
        **changes,
    }
    path = folder / f"case_{learner_id}.json"
    path.write_text(json.dumps(case))
    return str(path)
