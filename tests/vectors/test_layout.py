"""`build_layout` against recorded fragments and fingerprints."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from yeto_proto.layout import Shapes, build_layout

DATA = json.loads(Path(__file__).with_name("layout.json").read_text())
DIGESTS: dict[str, Shapes] = {
    "fingerprint_flat_shapes": "flat",
    "fingerprint_full_shapes": "full",
    "fingerprint_shapes_on_iso_only": "iso",
}


def model(name: str) -> dict[str, Any]:
    return {
        tensor["name"]: tuple(tensor["shape"]) if "shape" in tensor else tensor["numel"]
        for tensor in DATA["models"][name]
    }


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda vector: vector["name"])
def test_fragments_and_fingerprints(vector: dict[str, Any]) -> None:
    arguments = vector["num_fragments"], vector["pattern"]
    layout = build_layout(model(vector["tensors"]), *arguments, matrix_merge=vector["matrix_merge"])
    found = [
        {
            "merge_mode": int(fragment.merge_mode),
            "tensors": [tensor.name for tensor in fragment.tensors],
            "numel": fragment.numel,
        }
        for fragment in layout.fragments
    ]
    assert found == vector["fragments"]
    digests = [name for name in vector if name.startswith("fingerprint")]
    assert digests
    for name in digests:
        assert layout.fingerprint(shapes=DIGESTS[name]).hex() == vector[name], name
    if "fingerprint_flat_shapes" in digests:  # no shapes were given, so flat is all there is
        assert layout.fingerprint().hex() == vector["fingerprint_flat_shapes"]


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda vector: vector["name"])
def test_the_order_of_the_input_never_matters(vector: dict[str, Any]) -> None:
    arguments = vector["num_fragments"], vector["pattern"]
    expected = build_layout(model(vector["tensors"]), *arguments, matrix_merge=vector["matrix_merge"])
    for seed in range(5):
        items = list(model(vector["tensors"]).items())
        random.Random(seed).shuffle(items)
        assert build_layout(dict(items), *arguments, matrix_merge=vector["matrix_merge"]) == expected
