"""Spellings of arguments, and what is said about bad ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yeto_learner import Learner
from yeto_learner.arguments import environment_key, parse_contract, parse_dtype, parse_hash, parse_key
from yeto_learner.channel import address_text, parse_address
from yeto_learner.errors import SessionRejectedError
from yeto_proto._generated.types import Dtype


def test_dtypes_by_name_number_and_themselves() -> None:
    spellings: list[Any] = ["f32", "bf16", "q4", 3, Dtype.F32]
    assert [parse_dtype(each) for each in spellings] == [
        Dtype.F32,
        Dtype.BF16,
        Dtype.Q4,
        Dtype.Q4,
        Dtype.F32,
    ]


@pytest.mark.parametrize("bad", ["fp8", "", "F32", 0, 4])
def test_other_dtypes_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype|Dtype"):
        parse_dtype(bad)


def test_a_contract_is_32_bytes_or_the_hash_of_a_string() -> None:
    assert parse_contract(None) is None
    assert parse_contract(bytes(range(32))) == bytes(range(32))
    assert parse_contract("run 7") == hashlib.sha256(b"run 7").digest()


@pytest.mark.parametrize("bad", [b"", bytes(31), bytes(33), ""])
def test_other_contracts_are_refused(bad: bytes | str) -> None:
    with pytest.raises(ValueError, match="session_contract"):
        parse_contract(bad)


def test_a_profile_is_32_bytes_or_hex() -> None:
    assert parse_hash("ab" * 32, "p") == parse_hash(b"\xab" * 32, "p")
    for bad in ("ab" * 31, "zz" * 32, b"\xab"):
        with pytest.raises(ValueError, match="p must be 32 bytes"):
            parse_hash(bad, "p")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:29400", ("host", 29400)),
        ("host", ("host", 29400)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 29400)),
        (("h", 7), ("h", 7)),
    ],
)
def test_addresses(text: Any, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "bad",
    [
        *("", ":5", "host:x", "host:0", "host:65536", "host:-1", "[::1", "[::1]5", "[]:5", ("", 5)),
        *("a..b:5", ".:5", f"{'x' * 64}.example:5", ("a\0b", 5), "\ud800:5"),
    ],
)
def test_other_addresses_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(bad)


def test_an_address_is_shown_as_it_is_written() -> None:
    for text in ("host:5", "127.0.0.1:29400", "[::1]:7"):
        assert address_text(parse_address(text)) == text


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"key", b"key"),
        (b"key\n", b"key"),
        (b"key\r\n", b"key"),
        (b"key\n\n", b"key\n"),
        (b"key\r\n\r\n", b"key\r\n"),
        (b"key\r", b"key\r"),
        (b"\n\xff\x00\r", b"\n\xff\x00\r"),
    ],
)
def test_of_a_key_file_one_newline_at_its_end_is_left_out(tmp_path: Path, content: bytes, key: bytes) -> None:
    path = tmp_path / "run.key"
    path.write_bytes(content)
    assert parse_key(path) == key
    assert parse_key(content) == content  # bytes are used as they are
    assert parse_key("k\u00e9y\n") == b"k\xc3\xa9y\n"


def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.key"
    path.write_bytes(b"\r\n")
    for key in ("", b"", path):
        with pytest.raises(ValueError, match="hmac_key must not be empty"):
            Learner({"a": np.zeros(4, np.float32)}, "127.0.0.1:1", session_contract="x", hmac_key=key)
    with pytest.raises(FileNotFoundError):
        parse_key(tmp_path / "missing")


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YETO_ISLAND_HMAC_KEY", raising=False)
    assert environment_key() is None
    monkeypatch.setenv("YETO_ISLAND_HMAC_KEY", "")
    assert environment_key() is None
    monkeypatch.setenv("YETO_ISLAND_HMAC_KEY", "kéy")
    assert environment_key() == "kéy".encode()


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("session mismatch: dtype is f32, not bf16", "layout_hash_mismatch"),
        ("HELLO syncer semantic profile does not match", "syncer_profile_mismatch"),
        ("HELLO is missing the required syncer semantic profile binding", "syncer_profile_mismatch"),
        ("HELLO authentication failed", "island_auth_failed"),
        ("invalid HELLO: protocol version mismatch", None),
    ],
)
def test_known_refusals_have_a_metric(text: str, metric: str | None) -> None:
    error = SessionRejectedError(text)
    assert error.metric == metric
    assert str(error) == f"syncer rejected protocol session: {text}"


def test_a_refusal_is_one_line_without_control_characters() -> None:
    text = "bad \x1b[31m\nnews \u202e\ud800 häh"
    error = SessionRejectedError(text)
    assert str(error) == r"syncer rejected protocol session: bad \x1b[31m\nnews \u202e\ud800 häh"
    assert error.text == text


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(
            (keyword, value)
            for keyword in (
                "heartbeat_s",
                "heartbeat_stall_s",
                "initial_cut_timeout_s",
                "init_probe_s",
                "finalization_timeout_s",
                "connect_timeout_s",
            )
            for value in (-1, float("nan"))
        ),
        ("max_reconnects", -1),
        ("num_fragments", 0),
        ("pattern", "spiral"),
        ("matrix_merge", "best"),
        ("avg_name_regex", "("),
    ],
)
def test_what_a_learner_cannot_use_is_a_value_error_that_names_it(keyword: str, value: Any) -> None:
    with pytest.raises(ValueError, match=keyword):
        Learner({"a": np.zeros(4, np.float32)}, "127.0.0.1:1", session_contract="x", **{keyword: value})
