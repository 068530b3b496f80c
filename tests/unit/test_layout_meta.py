"""The layout metadata file."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yeto_proto._generated.errors import BadArgument, YetoError
from yeto_proto.layout import Fragment, Layout, Tensor, build_layout
from yeto_proto.layout_meta import LayoutMeta

LAYOUT = build_layout({"embed.weight": (10, 4), "a": (2, 3), "b": (6,), "c": (), "ö": 5}, 3)
ISO = build_layout({"embed.weight": (10, 4), "a": (2, 3), "b": (6,)}, 3, matrix_merge="iso")


@pytest.mark.parametrize("layout", [LAYOUT, ISO])
def test_there_and_back(layout: Layout) -> None:
    text = layout.to_json(task="lm", component="actor", missing=None)
    assert Layout.from_json(text) == layout
    assert Layout.from_json(text.encode()) == layout
    assert Layout.from_json(text).fingerprint() == layout.fingerprint()
    meta = LayoutMeta.from_json(text)
    assert (meta.task, meta.backend_version, dict(meta.extra)) == ("lm", "1", {"component": "actor"})
    assert meta.to_json() == text


def test_the_file_has_the_recorded_form() -> None:
    found = json.loads(LayoutMeta(ISO, "lm", dtypes={"a": "bfloat16"}).to_json())
    digest = found.pop("layout_hash")
    compact = json.dumps(found, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(compact.encode()).hexdigest()
    assert found == {
        "layout_meta_version": 1,
        "task": "lm",
        "backend_version": "1",
        "fragments": [
            {
                "id": 0,
                "merge_mode": "avg",
                "tensors": [
                    {"name": "embed.weight", "shape": [10, 4], "dtype": "float32", "numel": 40},
                    {"name": "b", "shape": [6], "dtype": "float32", "numel": 6},
                ],
            },
            {
                "id": 1,
                "merge_mode": "2",
                "tensors": [{"name": "a", "shape": [2, 3], "dtype": "bfloat16", "numel": 6}],
            },
        ],
    }


def changed(edit: Any) -> str:
    """The file after an edit, with a hash that fits."""
    content = LayoutMeta(LAYOUT).content()
    content = json.loads(json.dumps(content))
    edit(content)
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "layout_hash": hashlib.sha256(compact.encode()).hexdigest()})


def put(value: Any, *path: Any) -> Any:
    def edit(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (put(2, "layout_meta_version"), "layout_meta_version"),
        (put(7, "task"), "task"),
        (put(None, "fragments"), "fragments"),
        (put([], "fragments"), "fragments"),
        (put([1], "fragments"), "fragments[0]"),
        (put(5, "fragments", 0, "id"), "id"),
        (put("3", "fragments", 0, "merge_mode"), "merge_mode"),
        (put({}, "fragments", 0, "merge_mode"), "merge_mode"),
        (put([], "fragments", 0, "tensors"), "tensors"),
        (put(["a"], "fragments", 0, "tensors"), "fragments[0].tensors[0]"),
        (put(5, "fragments", 0, "tensors", 0, "name"), "fragments[0].tensors[0]"),
        (put("embed.weight", "fragments", 1, "tensors", 0, "name"), "name"),
        (put("\ud800", "fragments", 0, "tensors", 0, "name"), "name"),
        (put(True, "fragments", 0, "tensors", 0, "numel"), "fragments[0].tensors[0]"),
        (put(41, "fragments", 0, "tensors", 0, "numel"), "shape"),
        (put([10, 4.0], "fragments", 0, "tensors", 0, "shape"), "fragments[0].tensors[0]"),
        (put(7, "fragments", 0, "tensors", 0, "dtype"), "fragments[0].tensors[0]"),
    ],
)
def test_what_a_file_may_not_say(edit: Any, field: str) -> None:
    with pytest.raises(BadArgument) as caught:
        Layout.from_json(changed(edit))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "file"),
        ("[]", "file"),
        (b"\xff", "file"),
        ("[" * 200_000, "file"),
        ('{"layout_meta_version": 1}', "layout_hash"),
        (LAYOUT.to_json().replace("float32", "float64", 1), "layout_hash"),
    ],
)
def test_what_is_no_file(text: str | bytes, field: str) -> None:
    with pytest.raises(BadArgument) as caught:
        Layout.from_json(text)
    assert caught.value.field == field


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=json_values,
    path=st.sampled_from(
        [
            ("fragments",),
            ("fragments", 0),
            ("fragments", 0, "tensors"),
            ("fragments", 0, "tensors", 0),
            ("fragments", 0, "tensors", 0, "shape"),
            ("fragments", 0, "tensors", 0, "numel"),
            ("fragments", 1, "merge_mode"),
            ("task",),
        ]
    ),
)
def test_only_yeto_errors_escape(value: Any, path: tuple[Any, ...]) -> None:
    text = changed(put(value, *path))
    try:
        layout = Layout.from_json(text)
    except YetoError as error:
        assert "\n" not in str(error)
    else:
        assert Layout.from_json(layout.to_json()) == layout


def test_own_keys_are_not_for_extras() -> None:
    with pytest.raises(BadArgument, match="layout_hash"):
        LAYOUT.to_json(layout_hash="0")


def test_differences_are_named_and_at_most_twelve() -> None:
    ours = LayoutMeta(LAYOUT, "lm", extra={"base_sha": "1"})
    assert ours.differences(ours) == []
    other = LayoutMeta(LAYOUT, "chat", "2", {"a": "bfloat16"}, {"base_sha": "2"})
    assert ours.differences(other, ignore=("base_sha",)) == [
        "backend_version: expected '1', found '2'",
        "task: expected 'lm', found 'chat'",
        "tensor 'a': expected dtype float32, found bfloat16",
    ]
    assert len(ours.differences(other)) == 4

    many = LayoutMeta(Layout(tuple(Fragment(0, (Tensor(f"t{n}", 1),)) for n in range(20))))
    none = LayoutMeta(Layout(tuple(Fragment(1, (Tensor(f"u{n}", 1, ()),)) for n in range(21))))
    found = many.differences(none)
    assert len(found) == 12
    assert found[:3] == [
        "fragments: expected 20, found 21",
        "fragment 0: expected merge mode avg, found rda",
        "fragment 0, tensor 0: expected 't0' (1), found 'u0' (scalar)",
    ]
    short = LayoutMeta(Layout((Fragment(0, (Tensor("t0", 1), Tensor("x", 1))), *many.layout.fragments[1:])))
    assert short.differences(many) == ["fragment 0: expected 2 tensors, found 1"]
