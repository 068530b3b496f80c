"""`yeto-learner layout`: right fragments for good files, and one line for hostile ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from yeto_learner.cli import main
from yeto_learner.layout_command import MAX_HEADER, read_layout
from yeto_proto.layout import Layout, build_layout

SHAPES = {"embed.weight": (10, 4), "layers.0.mlp.weight": (4, 4), "layers.1.mlp.weight": (4, 4), "scale": ()}


def safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    header = {name: {"dtype": "F32", "shape": list(shape)} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "np"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"values that nobody reads")
    return path


def test_a_safetensors_file_and_its_metadata_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = build_layout(SHAPES, 3)
    model = safetensors(tmp_path / "model.safetensors", SHAPES)
    metadata = tmp_path / "layout.json"
    assert main(["layout", str(model), "--fragments", "3", "--write", str(metadata)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[:4] == ["0", "avg", "1", "40"]
    assert f"fingerprint {layout.fingerprint().hex()}" in printed
    assert Layout.from_json(metadata.read_text()) == layout

    assert main(["layout", str(metadata), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fingerprint"] == layout.fingerprint().hex()
    assert told["numel"] == 73
    assert [fragment["merge_mode"] for fragment in told["fragments"]] == ["avg", "rda", "rda"]


def test_names_do_not_reach_a_terminal_as_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = safetensors(tmp_path / "model.safetensors", {"\x1b[31m\n\u202e": (2, 2), "é": (2,)})
    assert main(["layout", str(model), "--fragments", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert r"\x1b[31m\n\u202e" in printed and "é" in printed


def test_builder_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {f"model.layers.{layer}.weight": (4, 4) for layer in range(4)}
    model = safetensors(tmp_path / "model.safetensors", shapes)
    flags = [
        "--fragments",
        "2",
        "--pattern",
        "strided",
        "--matrix-merge",
        "iso",
        "--avg-name-regex",
        r"layers\.3",
    ]
    assert main(["layout", str(model), "--json", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = build_layout(shapes, 2, "strided", matrix_merge="iso", avg_name_regex=r"layers\.3")
    assert told["fingerprint"] == expected.fingerprint().hex()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "neither layout metadata nor a safetensors file"),
        (b"# a text file", "neither layout metadata nor a safetensors file"),
        ((MAX_HEADER + 1).to_bytes(8, "little") + b"{}", "neither layout metadata nor a safetensors file"),
        ((90).to_bytes(8, "little") + b"{}", "cut off: 2 of 90 bytes"),
        ((4).to_bytes(8, "little") + b"nope", "not JSON"),
        ((4).to_bytes(8, "little") + b'"\xff\xff"', "not UTF-8"),
        ((2).to_bytes(8, "little") + b"[]", "not an object"),
        ((10**5).to_bytes(8, "little") + b"[" * 10**5, "not JSON"),
        ((20).to_bytes(8, "little") + b'{"a": 1, "a": 1}    ', "names a tensor twice"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "no shape for 'a'"),
        ((22).to_bytes(8, "little") + b'{"a": {"shape": [-1]}}', "no shape for 'a'"),
        ((24).to_bytes(8, "little") + b'{"a": {"shape": [true]}}', "no shape for 'a'"),
        ((2).to_bytes(8, "little") + b"{}", "nothing to lay out"),
        ((21).to_bytes(8, "little") + b'{"a": {"shape": [0]}}', "numel"),
        (b"{}", "layout metadata"),
        (b"{" * 10**5, "not JSON"),
    ],
)
def test_a_file_that_is_neither(
    data: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert main(["layout", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err
    assert str(path) in err


def test_paths_and_flags_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = safetensors(tmp_path / "model.safetensors", SHAPES)
    for arguments, reason in (
        ([str(tmp_path / "none")], "No such file or directory"),
        ([str(model), "--avg-name-regex", "("], "avg_name_regex"),
        ([str(model), "--write", str(tmp_path / "no" / "folder")], "No such file or directory"),
    ):
        assert main(["layout", *arguments]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert reason in err


def test_only_the_header_is_read(tmp_path: Path) -> None:
    """A model of any size: the file is sparse and much larger than memory."""
    model = safetensors(tmp_path / "model.safetensors", SHAPES)
    with model.open("r+b") as file:
        file.truncate(1 << 40)
    assert read_layout(model) == SHAPES


def test_no_fragments_are_a_mistake_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = safetensors(tmp_path / "model.safetensors", SHAPES)
    with pytest.raises(SystemExit) as left:
        main(["layout", str(model), "--fragments", "0"])
    assert left.value.code == 2
    assert "--fragments: must be at least 1, got 0" in capsys.readouterr().err
