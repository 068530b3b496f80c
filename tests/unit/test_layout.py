"""Layouts: what may stand in one, how tensors are dealt out, and the numeric form for HELLO."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yeto_proto._generated.errors import BadArgument
from yeto_proto._generated.types import MergeMode
from yeto_proto.layout import Fragment, Layout, Tensor, build_layout

names = st.sampled_from(
    [
        *(f"model.layers.{layer}.{part}" for layer in (0, 1, 2, 7, 30) for part in ("q", "mlp", "norm")),
        "model.embed_tokens.weight",
        "transformer.WTE.weight",
        "lm_head.weight",
        "t5.shared.weight",
        "model.norm.weight",
        "blocks.3.w",
        "a.blocks.3.w",
        "a.h.12.w",
        "a.h.x.w",
        "ö",
    ]
)
shapes = st.one_of(st.integers(1, 50), st.lists(st.integers(1, 9), max_size=3).map(tuple))
models = st.dictionaries(names, shapes, min_size=1, max_size=20)
AVG_PARTS = ("embed", "wte", "wpe", "lm_head", "shared.weight")


def plain_binpack(tensors: list[Tensor], bins: list[list[Tensor]]) -> None:
    """The rule as it is written: add up every bin for each tensor."""
    for tensor in tensors:
        totals = [sum(each.numel for each in content) for content in bins]
        bins[totals.index(min(totals))].append(tensor)


@given(model=models, fragments=st.integers(1, 8), iso=st.booleans(), strided=st.booleans())
def test_every_layout_follows_the_rules(
    model: dict[str, Any], fragments: int, iso: bool, strided: bool
) -> None:
    iso = iso and any(isinstance(size, tuple) for size in model.values())
    layout = build_layout(
        model, fragments, "strided" if strided else "binpack", matrix_merge="iso" if iso else "rda"
    )
    assert sorted(layout.tensor_names()) == sorted(model)
    by_name = {tensor.name: tensor for fragment in layout.fragments for tensor in fragment.tensors}
    for name, size in model.items():
        assert by_name[name].numel == (int(np.prod(size)) if isinstance(size, tuple) else size)
        assert by_name[name].shape == (size if isinstance(size, tuple) else None)

    def is_avg(tensor: Tensor) -> bool:
        known = any(part in tensor.name.lower() for part in AVG_PARTS)
        return known or (iso and (tensor.shape is None or len(tensor.shape) != 2))

    every = sorted(by_name.values(), key=lambda tensor: (-tensor.numel, tensor.name))
    averaged = tuple(filter(is_avg, every))
    others = [tensor for tensor in every if not is_avg(tensor)]
    rest = layout.fragments
    if averaged:
        assert layout.fragments[0] == Fragment(MergeMode.AVG, averaged)
        rest = layout.fragments[1:]
    assert {fragment.merge_mode for fragment in rest} <= {MergeMode.ISO if iso else MergeMode.RDA}
    bins = max(1, min(fragments - bool(averaged), len(others)))
    if not strided:
        expected: list[list[Tensor]] = [[] for _ in range(bins)]
        plain_binpack(others, expected)
        assert [list(fragment.tensors) for fragment in rest] == [content for content in expected if content]
    assert len(rest) <= bins


def test_ties_go_to_the_lowest_bin() -> None:
    layout = build_layout({f"t{number}": 10 for number in range(6)}, 4)
    assert [[tensor.name for tensor in fragment.tensors] for fragment in layout.fragments] == [
        ["t0", "t4"],
        ["t1", "t5"],
        ["t2"],
        ["t3"],
    ]


def test_strided_goes_by_the_rank_of_a_layer_and_orders_by_name() -> None:
    model = {
        "m.layers.10.a": 1,
        "m.layers.2.b": 100,
        "m.layers.2.a": 1,
        "m.layers.7.a": 5,
        "m.h.99.a": 2,
        "loose.big": 50,
        "loose.small": 3,
    }
    layout = build_layout(model, 3, "strided")
    # Layers 2, 7, 10, 99 are ranks 0 to 3, so bins 0, 1, 2, 0; loose ones follow by size, lowest total first.
    assert [[tensor.name for tensor in fragment.tensors] for fragment in layout.fragments] == [
        ["m.layers.2.a", "m.layers.2.b", "m.h.99.a"],
        ["m.layers.7.a", "loose.small"],
        ["m.layers.10.a", "loose.big"],
    ]


def test_the_first_layer_number_counts_and_needs_both_dots() -> None:
    model = {"a.layers.1.h.0.x": 5, "a.blocks.0.x": 5, "layers.0.x": 9, "a.layers.0": 9}
    layout = build_layout(model, 2, "strided")
    assert [[tensor.name for tensor in fragment.tensors] for fragment in layout.fragments] == [
        ["a.blocks.0.x", "a.layers.0"],
        ["a.layers.1.h.0.x", "layers.0.x"],
    ]


def test_avg_regex_is_case_sensitive_and_found_anywhere() -> None:
    model = {"Gate.w": 4, "gate.w": 4, "x.Gate": 4}
    layout = build_layout(model, 3, avg_name_regex="Gate")
    assert [tensor.name for tensor in layout.fragments[0].tensors] == ["Gate.w", "x.Gate"]
    assert layout.fragments[0].merge_mode is MergeMode.AVG


def test_one_fragment_with_embeddings_gives_two() -> None:
    assert build_layout({"embed": (4, 2), "w": 3}, 1).num_fragments == 2
    assert build_layout({"embed": (4, 2)}, 5).num_fragments == 1
    assert build_layout({"a": 1, "b": 2}, 9).num_fragments == 2


def test_shapes_may_be_any_sequence_of_whole_numbers() -> None:
    layout = build_layout({"a": [2, np.int64(3)], "b": np.int64(5), "c": ()}, 1)
    assert {tensor.name: tensor.shape for tensor in layout.fragments[0].tensors} == {
        "a": (2, 3),
        "b": None,
        "c": (),
    }
    assert layout.numel == 12


@given(model=models, fragments=st.integers(1, 8))
def test_wire_layout_has_the_same_numbers(model: dict[str, Any], fragments: int) -> None:
    iso = "iso" if any(isinstance(size, tuple) for size in model.values()) else "rda"
    layout = build_layout(model, fragments, matrix_merge=iso)
    wire = layout.wire()
    assert wire.num_fragments == layout.num_fragments
    for number, fragment in enumerate(layout.fragments):
        assert wire.merge_mode(number) is fragment.merge_mode
        assert wire.numels(number).tolist() == [tensor.numel for tensor in fragment.tensors]
        assert int(wire.fragment_numels[number]) == fragment.numel
        pairs = wire.shapes(number)
        if fragment.merge_mode is MergeMode.ISO:
            assert pairs is not None
            assert [tuple(pair) for pair in pairs.tolist()] == [tensor.shape for tensor in fragment.tensors]
        else:
            assert pairs is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (({"a": 1}, 0), "num_fragments"),
        (({"a": 1}, 1, "spiral"), "pattern"),
        (({"a": 1}, 1, "binpack", "svd"), "matrix_merge"),
        (({"a": 1}, 1, "binpack", "iso"), "tensors"),
        (({}, 1), "tensors"),
        (({"a": "large"}, 1), "tensors"),
        (({"a": 1.5}, 1), "tensors"),
        (({"a": (2, 1.5)}, 1), "tensors"),
        (({"a": 0}, 1), "numel"),
        (({"a": (3, 0)}, 1), "numel"),
        (({"a": -1}, 1), "numel"),
        (({"a": (-2, -2)}, 1), "shape"),
        (({"a": 1 << 60}, 1), "numel"),
        (({"\ud800": 1}, 1), "name"),
        (({5: (3,)}, 1), "name"),
        (({b"a": 1}, 1), "name"),
        (({"a": 1}, 1, "binpack", []), "matrix_merge"),
        (({"a": 1}, 1, "binpack", "rda", "("), "avg_name_regex"),
        (({"a": 1}, 1, "binpack", "rda", 5), "avg_name_regex"),
        (({"a": 1}, 1, "binpack", "rda", b"a"), "avg_name_regex"),
        (({"a": 1}, 1, "binpack", "rda", "a{99999999999999999999}"), "avg_name_regex"),
    ],
)
def test_what_cannot_be_laid_out(arguments: tuple[Any, ...], field: str) -> None:
    model, fragments, *rest = arguments
    keys = ("pattern", "matrix_merge", "avg_name_regex")
    with pytest.raises(BadArgument) as caught:
        build_layout(model, fragments, **dict(zip(keys, rest, strict=False)))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Layout(()), "fragments"),
        (lambda: Fragment(MergeMode.AVG, ()), "tensors"),
        (lambda: Fragment(MergeMode.AVG, (Tensor(5, 4),)), "name"),  # type: ignore[arg-type]  # not text
        (lambda: Fragment(MergeMode.ISO, (Tensor("a", 4),)), "shape"),
        (lambda: Fragment(MergeMode.ISO, (Tensor("a", 4, (4,)),)), "shape"),
        (lambda: Fragment(MergeMode.RDA, (Tensor("a", 4, (2, 3)),)), "shape"),
        (
            lambda: Layout((Fragment(MergeMode.RDA, (Tensor("a", 4), Tensor("a", 4))),)),
            "name",
        ),
    ],
)
def test_what_no_layout_may_hold(build: Any, field: str) -> None:
    with pytest.raises(BadArgument) as caught:
        build()
    assert caught.value.field == field


def large_model() -> dict[str, tuple[int, int]]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 6000, (41_643, 2)).tolist()
    return {
        f"model.layers.{number % 94}.mlp.experts.{number}.weight": (rows, cols)
        for number, (rows, cols) in enumerate(sizes)
    }


def test_a_large_model_takes_no_minutes() -> None:
    model = large_model()
    started = time.thread_time()
    layout = build_layout(model, 32)
    layout.fingerprint()
    # The target is a second; the quadratic way took 107. Only this thread's own time counts.
    assert time.thread_time() - started < 20
    totals = [fragment.numel for fragment in layout.fragments]
    assert len(totals) == 32
    assert max(totals) - min(totals) <= 6000 * 6000
