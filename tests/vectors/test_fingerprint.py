"""The layout fingerprint against recorded digests and the byte strings behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from yeto_proto._generated.types import MergeMode
from yeto_proto.layout import Fragment, Layout, Tensor

DATA = json.loads(Path(__file__).with_name("fingerprint.json").read_text())
VECTORS = {vector["name"]: vector for vector in DATA["vectors"]}


def layout(vector: dict[str, Any], *, shapes: bool = True) -> Layout:
    return Layout(
        tuple(
            Fragment(
                MergeMode(fragment["merge_mode"]),
                tuple(
                    Tensor(tensor["name"], tensor["numel"], tuple(tensor["shape"]) if shapes else None)
                    for tensor in fragment["tensors"]
                ),
            )
            for fragment in vector["fragments"]
        )
    )


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda vector: vector["name"])
def test_digest_and_preimage(vector: dict[str, Any]) -> None:
    found = layout(vector)
    assert found.fingerprint_preimage().hex() == vector["preimage_hex"]
    assert found.fingerprint().hex() == vector["fingerprint_hex"]


def test_a_tensor_without_a_shape_counts_as_flat() -> None:
    assert layout(VECTORS["B"], shapes=False).fingerprint().hex() == VECTORS["B"]["fingerprint_hex"]
    # C is B with shape (2, 2): asked for flat shapes it is B.
    assert layout(VECTORS["C"]).fingerprint(shapes="flat").hex() == VECTORS["B"]["fingerprint_hex"]
    assert layout(VECTORS["C"]).fingerprint(shapes="iso").hex() == VECTORS["B"]["fingerprint_hex"]


def test_name_mode_shape_and_order_all_count() -> None:
    digests = {vector["fingerprint_hex"] for vector in DATA["vectors"]}
    assert len(digests) == len(DATA["vectors"])
    (fragment,) = layout(VECTORS["G"]).fragments
    turned = Layout((Fragment(fragment.merge_mode, fragment.tensors[::-1]),))
    assert turned.fingerprint().hex() not in digests
