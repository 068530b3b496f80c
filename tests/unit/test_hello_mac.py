"""The MAC of a HELLO, against the vectors and against forgeries."""

from __future__ import annotations

import hmac
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yeto_proto import hello_mac
from yeto_proto._generated.constants import MAC_BYTES
from yeto_proto._generated.errors import AuthenticationFailed, BadArgument

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "frames.json").read_text())
KEY = VECTORS["hello_mac"]["key_ascii"].encode()
BODIES = {each["name"]: bytes.fromhex(each["payload_hex"]) for each in VECTORS["messages"]}


@pytest.mark.parametrize("vector", VECTORS["hello_mac"]["vectors"], ids=lambda vector: vector["hello"])
def test_vectors(vector: dict[str, object]) -> None:
    body = BODIES[str(vector["hello"])]
    sealed = hello_mac.seal(body, KEY)
    assert len(sealed) == vector["sealed_payload_length"]
    assert sealed == body + bytes.fromhex(str(vector["mac_hex"]))
    assert hello_mac.open(sealed, KEY) == body


@pytest.mark.rule("hello.hello_mac.mac")
@given(st.binary(max_size=200), st.integers(0), st.integers(1, 255))
def test_any_changed_byte_is_refused(body: bytes, place: int, flip: int) -> None:
    sealed = bytearray(hello_mac.seal(body, KEY))
    sealed[place % len(sealed)] ^= flip
    with pytest.raises(AuthenticationFailed) as caught:
        hello_mac.open(sealed, KEY)
    assert caught.value.rule == "hello.hello_mac.mac"
    assert str(caught.value).startswith("HELLO authentication failed")


@pytest.mark.rule("hello.hello_mac.mac")
@pytest.mark.parametrize("size", [0, 1, MAC_BYTES - 1, MAC_BYTES])
def test_a_payload_that_cannot_hold_a_mac_is_refused(size: int) -> None:
    with pytest.raises(AuthenticationFailed):
        hello_mac.open(bytes(size), KEY)


def test_another_key_is_refused() -> None:
    with pytest.raises(AuthenticationFailed):
        hello_mac.open(hello_mac.seal(b"body", KEY), KEY + b"x")


def test_an_empty_key_is_an_error_of_the_caller() -> None:
    with pytest.raises(BadArgument):
        hello_mac.seal(b"body", b"")
    with pytest.raises(BadArgument):
        hello_mac.open(bytes(64), b"")


def test_the_comparison_takes_the_same_time_for_every_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def compare(ours: bytes, theirs: memoryview) -> bool:
        compared.append((bytes(ours), bytes(theirs)))
        return real(ours, theirs)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    sealed = hello_mac.seal(b"body", KEY)
    hello_mac.open(sealed, KEY)
    assert compared == [(sealed[-MAC_BYTES:], sealed[-MAC_BYTES:])]
