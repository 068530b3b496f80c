"""The final marker and the final state on streams."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yeto_proto import files
from yeto_proto._generated.errors import (
    BadArgument,
    BadFragmentCount,
    BadMarker,
    BadNumel,
    TrailingBytes,
    Truncated,
)


@pytest.mark.rule("final_marker.form")
@pytest.mark.rule("final_marker.global_step.must")
@pytest.mark.parametrize(("text", "step"), [(b"0", 0), (b"007", 7), (b"18446744073709551615", 2**64 - 1)])
def test_markers_that_pass(text: bytes, step: int) -> None:
    assert files.parse_marker(b"YETO_FINAL_V1\nglobal_step=" + text + b"\n") == step


@pytest.mark.rule("final_marker.form")
@pytest.mark.rule("final_marker.global_step.must")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"YETO_FINAL_V1\nglobal_step=17",
        b"YETO_FINAL_V1\nglobal_step=17\n\n",
        b"YETO_FINAL_V1\r\nglobal_step=17\n",
        b"YETO_FINAL_V1\nglobal_step=\n",
        b"YETO_FINAL_V1\nglobal_step=-1\n",
        b"YETO_FINAL_V1\nglobal_step= 1\n",
        b"YETO_FINAL_V2\nglobal_step=1\n",
        "YETO_FINAL_V1\nglobal_step=\u0661\n".encode(),
        b"YETO_FINAL_V1\nglobal_step=18446744073709551616\n",
        b"YETO_FINAL_V1\nglobal_step=" + b"9" * 5000 + b"\n",
        b"\xff" * 100,
    ],
)
def test_markers_that_do_not(data: bytes) -> None:
    with pytest.raises(BadMarker):
        files.parse_marker(data)


@given(step=st.integers(0, 2**64 - 1))
def test_marker_round_trip(step: int) -> None:
    assert files.parse_marker(files.format_marker(step)) == step


@pytest.mark.parametrize("step", [-1, 1 << 64])
def test_a_marker_needs_a_u64(step: int) -> None:
    with pytest.raises(BadArgument):
        files.format_marker(step)


def final_state(*fragments: Any) -> bytes:
    stream = io.BytesIO()
    files.write_final_state_to(stream, [np.array(values, np.float32) for values in fragments])
    return stream.getvalue()


def read_final(data: bytes) -> list[Any]:
    return [params.tolist() for params in files.read_final_state_from(io.BytesIO(data))]


@pytest.mark.rule("final_state.complete")
@pytest.mark.rule("final_state.fragment_count.must")
@pytest.mark.rule("final_state.numel.must")
@pytest.mark.rule("final_state.end")
def test_final_state_round_trip_and_faults() -> None:
    data = final_state([1, 2], [3])
    assert read_final(data) == [[1, 2], [3]]
    for size in range(len(data)):
        with pytest.raises(Truncated):
            read_final(data[:size])
    with pytest.raises(TrailingBytes) as caught:
        read_final(data + b"abc")
    assert (caught.value.seen, caught.value.offset) == (3, len(data))
    with pytest.raises(BadFragmentCount):
        read_final(bytes(4))
    with pytest.raises(BadNumel):
        read_final(b"\1" + bytes(11))
    with pytest.raises(Truncated, match="4294967295 fragments"):
        read_final(b"\xff" * 4 + bytes(100))
    with pytest.raises(Truncated, match="fragment 0 params"):
        read_final(b"\1\0\0\0" + b"\xff" * 8 + bytes(8))


@pytest.mark.parametrize(
    ("fragments", "field"),
    [([], "fragment_count"), ([np.ones(2)], "params"), ([np.empty(0, np.float32)], "params")],
)
def test_what_a_final_state_cannot_hold(fragments: list[Any], field: str) -> None:
    with pytest.raises(BadArgument) as caught:
        files.write_final_state_to(io.BytesIO(), fragments)
    assert caught.value.field == field
