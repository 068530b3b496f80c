"""What may be trained, and what is said about the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from yeto_learner.parameters import ArrayParameters, as_parameters


def test_values_are_read_as_f32_and_written_back_in_their_own_dtype() -> None:
    arrays: dict[str, Any] = {
        "half": np.array([1.5, 2.5], np.float16),
        "single": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32),
        "double": np.array(7.25, np.float64),
    }
    parameters = ArrayParameters(arrays)
    assert parameters.shapes() == {"half": (2,), "single": (2, 2), "double": ()}
    assert parameters.read("half", 0, 2).dtype == np.float32
    np.testing.assert_array_equal(parameters.read("single", 1, 3), [2.0, 3.0])
    parameters.write("single", 2, np.array([8.0, 9.0], np.float32))
    np.testing.assert_array_equal(arrays["single"], [[1.0, 2.0], [8.0, 9.0]])
    parameters.write("double", 0, np.array([0.1], np.float32))
    assert arrays["double"] == np.float64(np.float32(0.1))
    parameters.write("half", 0, np.array([1.0 + 2**-12], np.float32))
    assert arrays["half"][0] == np.float16(1.0)


def test_memory_that_is_not_contiguous_is_fine() -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    parameters = ArrayParameters({"t": base.T})
    np.testing.assert_array_equal(parameters.read("t", 1, 4), base.T.reshape(-1)[1:4])
    parameters.write("t", 1, np.array([-1.0, -2.0], np.float32))
    assert (base.T[0, 1], base.T[0, 2]) == (-1.0, -2.0)


def test_an_array_may_be_replaced_by_one_that_fits() -> None:
    arrays = {"w": np.zeros(3, np.float32)}
    parameters = ArrayParameters(arrays)
    parameters.write("w", 0, np.ones(3, np.float32))
    arrays["w"] = np.full(3, 5, np.float32)
    parameters.check()
    np.testing.assert_array_equal(parameters.read("w", 0, 3), [5, 5, 5])


READ_ONLY = np.zeros(3, np.float32)
READ_ONLY.setflags(write=False)
SHARED = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "nothing to train"),
        ([1, 2], "must be a mapping"),
        ({"w": [1.0]}, "must be a numpy array"),
        ({"": np.zeros(1, np.float32)}, "non-empty strings"),
        ({"w": np.zeros(3, np.int32)}, "'w' is int32"),
        ({"w": np.zeros(3, np.complex64)}, "'w' is complex64"),
        ({"w": np.zeros(3, ">f4")}, "'w' is >f4"),
        ({"w": READ_ONLY}, "'w' is read-only"),
        ({"w": np.zeros((0, 3), np.float32)}, "'w' is empty"),
        ({"w": SHARED, "tied": SHARED}, "share memory"),
        ({"w": SHARED[:5], "v": SHARED[4:]}, "share memory"),
    ],
)
def test_what_cannot_be_trained_is_named(arrays: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ArrayParameters(arrays)


@pytest.mark.parametrize("given", [[np.zeros(3, np.float32)], np.zeros(3, np.float32), None])
def test_what_is_no_mapping_is_told_what_to_give(given: Any) -> None:
    with pytest.raises(ValueError, match=r"must be a mapping .*, not a \w+; for a PyTorch module use"):
        as_parameters(given)


def test_neighbours_in_one_buffer_are_not_aliases() -> None:
    ArrayParameters({"w": SHARED[:4], "v": SHARED[4:]})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda arrays: arrays.update(w=np.zeros(4, np.float32)), "now float32 of shape"),
        (lambda arrays: arrays.update(w=np.zeros(3, np.float64)), "now float64"),
        (lambda arrays: arrays.update(w=[0.0]), "a list"),
        (lambda arrays: arrays.pop("w"), "'w' is gone"),
        (lambda arrays: arrays.update(x=np.zeros(1, np.float32)), "unknown parameter 'x'"),
    ],
)
def test_a_later_change_is_found_at_the_next_check(change: Any, text: str) -> None:
    arrays: dict[str, Any] = {"w": np.zeros(3, np.float32), "v": np.zeros(1, np.float32)}
    parameters = ArrayParameters(arrays)
    parameters.check()
    change(arrays)
    with pytest.raises(ValueError, match=text):
        parameters.check()


def test_a_replacement_that_is_read_only_is_refused_when_it_is_written() -> None:
    arrays = {"w": np.zeros(3, np.float32)}
    parameters = ArrayParameters(arrays)
    arrays["w"] = READ_ONLY
    with pytest.raises(ValueError, match="read-only"):
        parameters.write("w", 0, np.ones(3, np.float32))
