"""The arithmetic of installs and deltas, against one obvious line of numpy each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from yeto_learner.core import values
from yeto_learner.core.modes import InstallMode
from yeto_learner.core.values import F32, Anchor, Span, install, overwrite, write_delta
from yeto_proto import dtypes
from yeto_proto._generated.types import Dtype

SPANS = [Span("a", 0, 7), Span("b", 7, 5)]
NUMEL = 12


class Store:
    """Parameters as one flat f32 array per name."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.arrays = {name: random.normal(size=numel).astype(np.float32) for name, _, numel in SPANS}

    def read(self, name: str, start: int, stop: int) -> F32:
        return self.arrays[name][start:stop]

    def write(self, name: str, start: int, new: F32) -> None:
        self.arrays[name][start : start + len(new)] = new

    def flat(self) -> F32:
        return np.concatenate([self.arrays[name] for name, _, _ in SPANS])


@pytest.fixture(params=[3, 1 << 18])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks that cut the tensors, and one that takes each as a whole."""
    size: int = request.param
    monkeypatch.setattr(values, "BLOCK", size)
    return size


def raw_values(seed: int, dtype: Dtype) -> tuple[F32, memoryview]:
    raw = np.random.default_rng(seed).normal(size=NUMEL).astype(np.float32)
    data = dtypes.encode(dtype, raw)
    return dtypes.decode(dtype, data, NUMEL), data


def anchor_with(raw: F32, dtype: Dtype = Dtype.F32) -> Anchor:
    anchor = Anchor(NUMEL, dtype)
    anchor.load(0, NUMEL, Dtype.F32, dtypes.encode(Dtype.F32, raw))
    return anchor


@pytest.mark.rule("learner.anchor.raw")
@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16])
@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_blending_keeps_the_raw_global_as_the_anchor(dtype: Dtype, alpha: float) -> None:
    store, (raw, data) = Store(1), raw_values(2, dtype)
    before = store.flat()
    anchor = anchor_with(np.zeros(NUMEL, np.float32))
    install(InstallMode.BLEND, SPANS, store, anchor, data, dtype, alpha)
    expected = raw if alpha == 0 else np.float32(alpha) * before + np.float32(1 - alpha) * raw
    np.testing.assert_array_equal(store.flat(), expected)
    np.testing.assert_array_equal(anchor.read(0, NUMEL), raw)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("mode", [InstallMode.CONFIRM, InstallMode.ANCHOR_ONLY])
def test_modes_that_leave_local_values_alone(mode: InstallMode) -> None:
    store, (raw, data) = Store(1), raw_values(2, Dtype.F32)
    before, old = store.flat(), np.arange(NUMEL, dtype=np.float32)
    anchor = anchor_with(old)
    install(mode, SPANS, store, anchor, data, Dtype.F32, 0.5)
    np.testing.assert_array_equal(store.flat(), before)
    np.testing.assert_array_equal(anchor.read(0, NUMEL), old if mode is InstallMode.CONFIRM else raw)


@pytest.mark.usefixtures("block")
def test_overwriting_ignores_alpha() -> None:
    store, (raw, data) = Store(1), raw_values(2, Dtype.F32)
    install(InstallMode.OVERWRITE, SPANS, store, Anchor(NUMEL, Dtype.F32), data, Dtype.F32, 0.9)
    np.testing.assert_array_equal(store.flat(), raw)


@pytest.mark.usefixtures("block")
def test_a_shift_moves_local_progress_onto_the_new_global() -> None:
    store, (raw, data) = Store(1), raw_values(2, Dtype.F32)
    before, (old, _) = store.flat(), raw_values(3, Dtype.F32)
    install(InstallMode.SHIFT, SPANS, store, anchor := anchor_with(old), data, Dtype.F32, 0.5)
    np.testing.assert_array_equal(store.flat(), raw + (before - old))
    np.testing.assert_array_equal(anchor.read(0, NUMEL), raw)


def test_a_shift_keeps_a_tensor_whose_global_did_not_change_bit_for_bit() -> None:
    store, (raw, _) = Store(1), raw_values(2, Dtype.F32)
    old = raw.copy()
    old[7:] += 1  # only tensor b changed
    before = store.flat()
    install(InstallMode.SHIFT, SPANS, store, anchor_with(old), dtypes.encode(Dtype.F32, raw), Dtype.F32, 0.5)
    np.testing.assert_array_equal(store.flat()[:7], before[:7])
    np.testing.assert_array_equal(store.flat()[7:], raw[7:] + (before[7:] - old[7:]))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("anchor_dtype", [Dtype.F32, Dtype.BF16])
def test_the_delta_is_local_minus_anchor(anchor_dtype: Dtype) -> None:
    store, (raw, data) = Store(1), raw_values(2, Dtype.BF16)
    anchor = Anchor(NUMEL, anchor_dtype)
    anchor.load(0, NUMEL, Dtype.BF16, data)
    out = np.empty(NUMEL, np.float32)
    assert write_delta(SPANS, store, anchor, out) is None
    np.testing.assert_array_equal(out, store.flat() - raw)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_delta_that_is_not_finite_names_its_tensor(bad: float) -> None:
    store = Store(1)
    store.arrays["b"][4] = bad
    assert (
        write_delta(SPANS, store, anchor_with(np.zeros(NUMEL, np.float32)), np.empty(NUMEL, np.float32))
        == "b"
    )


def test_large_finite_values_are_not_taken_for_infinities() -> None:
    store = Store(1)
    store.arrays["a"][:] = np.float32(3e38)  # their sum overflows
    out = np.empty(NUMEL, np.float32)
    assert write_delta(SPANS, store, anchor_with(np.zeros(NUMEL, np.float32)), out) is None
    assert out[0] == np.float32(3e38)


@pytest.mark.usefixtures("block")
def test_the_final_cut_overwrites_in_f32() -> None:
    store, (raw, data) = Store(1), raw_values(2, Dtype.F32)
    overwrite(SPANS, store, data)
    np.testing.assert_array_equal(store.flat(), raw)


def test_an_anchor_is_kept_as_f32_or_bf16_only() -> None:
    with pytest.raises(ValueError, match="q4"):
        Anchor(4, Dtype.Q4)


def test_a_bf16_anchor_takes_half_the_bytes_and_gives_them_back() -> None:
    raw, data = raw_values(5, Dtype.BF16)
    anchor = Anchor(NUMEL, Dtype.BF16)
    anchor.load(0, NUMEL, Dtype.BF16, data)
    assert bytes(anchor.stored()) == bytes(data)
    assert anchor.stored().nbytes == 2 * NUMEL
    np.testing.assert_array_equal(anchor.read(2, 3), raw[2:5])


def test_blend_is_done_in_f32() -> None:
    local: npt.NDArray[np.float32] = np.array([1.0, 3.0], np.float32)
    raw: npt.NDArray[np.float32] = np.array([0.1, -2.0], np.float32)
    mixed = values.blend(local, raw, 0.1, np.empty((2, 3), np.float32))
    assert mixed.dtype == np.float32
    np.testing.assert_array_equal(mixed, np.float32(0.1) * local + np.float32(0.9) * raw)
