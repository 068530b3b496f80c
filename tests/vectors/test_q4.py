"""q4 against recorded blocks."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yeto_proto import dtypes
from yeto_proto._generated.constants import Q4_BLOCK_BYTES, Q4_THRESHOLDS
from yeto_proto._generated.errors import BadLength, BadScale
from yeto_proto._generated.types import Dtype

DATA = json.loads(Path(__file__).with_name("q4.json").read_text())
# Tensors that the file describes in words.
WORDS = {
    "256 x -3.0": [-3.0] * 256,
    "2.0, then 255 x 0.0, then -4.0": [2.0, *[0.0] * 255, -4.0],
}


def tensor(vector: dict[str, Any]) -> np.ndarray[Any, Any]:
    if "input_hex_le" in vector:
        return np.frombuffer(bytes.fromhex(vector["input_hex_le"]), "<f4")
    return np.array(WORDS[vector["input"]], "<f4")


def wire_bytes(vector: dict[str, Any]) -> bytes:
    data = b""
    for block in vector["blocks"]:
        if "scale" in block:
            data += np.array([block["scale"]], "<f4").tobytes()
        else:
            data += bytes.fromhex(block["scale_hex_le"])
        nibbles, _, times = block["nibbles_hex"].partition(" x ")
        data += (bytes.fromhex(nibbles) * int(times or 1)).ljust(Q4_BLOCK_BYTES - 4, b"\0")
    return data


def test_thresholds_are_those_of_the_spec() -> None:
    assert [f"{bits:08x}" for bits in Q4_THRESHOLDS] == list(DATA["level_thresholds_f32_bits"].values())


@pytest.mark.parametrize("vector", DATA["encode"], ids=lambda vector: vector["name"])
def test_encodes_byte_for_byte(vector: dict[str, Any]) -> None:
    values = tensor(vector)
    assert values.size == vector["numel"]
    wire = dtypes.encode(Dtype.Q4, values)
    assert len(wire) == vector["length"]
    assert wire == wire_bytes(vector)
    assert hashlib.sha256(wire).hexdigest() == vector["encoded_sha256"]
    if "decoded_f32" in vector:
        decoded = dtypes.decode(Dtype.Q4, wire, values.size)
        assert decoded.tobytes() == np.array(vector["decoded_f32"], "<f4").tobytes()


@pytest.mark.parametrize("name", ["exact_levels", "constant_block", "near_f32_max", "subnormals"])
def test_these_decode_to_their_input(name: str) -> None:
    (vector,) = (vector for vector in DATA["encode"] if vector["name"] == name)
    values = tensor(vector)
    decoded = dtypes.decode(Dtype.Q4, dtypes.encode(Dtype.Q4, values), values.size)
    assert decoded.tobytes() == values.tobytes()


@pytest.mark.parametrize("vector", DATA["decode_only"], ids=lambda vector: vector["name"])
def test_decodes(vector: dict[str, Any]) -> None:
    wire = wire_bytes(vector)
    assert hashlib.sha256(wire).hexdigest() == vector["encoded_sha256"]
    expected = np.zeros(vector["numel"], "<f4")
    for index, value in vector["nonzero"].items():
        expected[int(index)] = value
    assert np.array_equal(dtypes.decode(Dtype.Q4, wire, vector["numel"]), expected)


@pytest.mark.parametrize("error", DATA["errors"], ids=lambda error: str(error.get("scale", "length")))
def test_refuses(error: dict[str, Any]) -> None:
    if error["expected"] == "length error":
        with pytest.raises(BadLength) as caught:
            dtypes.decode(Dtype.Q4, bytes(error["payload_length"]), error["numel"])
        assert (caught.value.seen, caught.value.limit) == (131, 132)
        return
    scales = [error["scale"]] if isinstance(error["scale"], float) else [math.nan, math.inf, -math.inf]
    for scale in scales:
        wire = bytes(Q4_BLOCK_BYTES) + np.array([scale], "<f4").tobytes() + bytes(Q4_BLOCK_BYTES - 4)
        with pytest.raises(BadScale) as refused:
            dtypes.check_finite(Dtype.Q4, wire)
        assert refused.value.offset == Q4_BLOCK_BYTES
