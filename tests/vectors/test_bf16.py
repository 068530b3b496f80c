"""bf16 against recorded bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yeto_proto import dtypes
from yeto_proto._generated.errors import NonFinite
from yeto_proto._generated.types import Dtype

DATA = json.loads(Path(__file__).with_name("bf16.json").read_text())


def f32(bits: str) -> np.ndarray[Any, Any]:
    return np.array([int(bits, 16)], "<u4").view("<f4")


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda vector: vector["f32_bits"])
def test_rounds_to_nearest_even(vector: dict[str, str]) -> None:
    wire = dtypes.encode(Dtype.BF16, f32(vector["f32_bits"]))
    assert wire.hex() == vector["wire_hex"]
    decoded = dtypes.decode(Dtype.BF16, wire, 1)
    assert f"{decoded.view('<u4')[0]:08x}" == vector["decoded_f32_bits"]


def test_all_vectors_in_one_tensor() -> None:
    values = np.concatenate([f32(vector["f32_bits"]) for vector in DATA["vectors"]])
    wire = dtypes.encode(Dtype.BF16, values)
    assert wire.hex() == "".join(vector["wire_hex"] for vector in DATA["vectors"])


@pytest.mark.rule("init_params.tensor.finite")
@pytest.mark.parametrize("vector", DATA["refused_on_the_wire"], ids=lambda vector: vector["bf16_bits"])
def test_a_receiver_refuses(vector: dict[str, str]) -> None:
    wire = int(vector["bf16_bits"], 16).to_bytes(2, "little")
    good = b"\x80\x3f"
    with pytest.raises(NonFinite) as caught:
        dtypes.check_finite(Dtype.BF16, good * 3 + wire + good)
    assert caught.value.offset == 6
