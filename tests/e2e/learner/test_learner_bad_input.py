"""`Learner`: what is said about bad input, and where its log lines show."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.learner.rig import arrived, parameters, root_handlers, running, wait_until
from yeto_learner import Learner, NonFiniteParameterError, exporter, logs
from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import WrongState


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"merge_alpha": 1.5}, "merge_alpha"),
        ({"min_local_steps": 0}, "min_local_steps"),
        ({"dtype": "fp8"}, "dtype"),
        ({"session_contract": b"short"}, "session_contract"),
        ({"syncer_profile": "xyz"}, "syncer_profile"),
        ({"anchor_dtype": "bf16", "dtype": "f32"}, "anchor_dtype"),
        ({"anchor_dtype": "q4", "dtype": "q4"}, "anchor_dtype"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Learner(parameters(), "127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_initial_values_must_be_finite() -> None:
    arrays = parameters()
    arrays["embed"][0, 0] = np.nan
    with (
        pytest.raises(NonFiniteParameterError, match="parameter 'embed'"),
        Learner(arrays, "127.0.0.1:1", session_contract="t"),
    ):
        pass


def test_a_parameter_that_stops_being_finite_is_named_and_nothing_is_sent() -> None:
    arrays = parameters()
    with running(arrays) as (made, peer, _):
        for fragment in range(2):
            peer.send(wire.PullReq(fragment, fragment + 1, 1))
        arrived(made, pulls=2)
        keep = arrays["layers.1.mlp"].copy()
        arrays["layers.1.mlp"][1, 1] = np.inf
        with pytest.raises(NonFiniteParameterError) as caught:
            made.step()
        assert caught.value.name == "layers.1.mlp"
        arrays["layers.1.mlp"][...] = keep
        made.step()
        assert {peer.expect(wire.PushFragment).fragment_id for _ in range(2)} == {0, 1}


def test_a_changed_parameter_is_found_at_the_next_step() -> None:
    arrays = parameters()
    with running(arrays) as (made, _, _):
        arrays["embed"] = np.zeros((5, 4), np.float32)
        with pytest.raises(ValueError, match="'embed' was float32 of shape"):
            made.step()
        with pytest.raises(ValueError, match="tokens"):
            made.step(tokens=-1)


def test_an_export_that_fails_reaches_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[bytes]:
        yield b"12345678"
        raise ValueError("the encoder broke")

    monkeypatch.setattr(exporter, "encoded_parts", broken)
    with running() as (made, peer, _):
        peer.send(wire.PullReq(0, 1, 1))
        arrived(made, pulls=1)
        made.step()
        wait_until(lambda: made._exporter._failure is not None)
        with pytest.raises(RuntimeError, match="sending an answer failed: the encoder broke"):
            made.step()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("yeto-")] == []


def test_a_learner_is_used_inside_its_block() -> None:
    made = Learner(parameters(), "127.0.0.1:1", session_contract="t")
    for call in (made.step, made.finish):
        with pytest.raises(WrongState, match="not open yet"):
            call()


@pytest.mark.rule("learner.contract.default")
def test_a_missing_contract_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        running(session_contract=None) as (made, peer, _),
    ):
        assert peer.hello.session_contract_hash == made.layout.fingerprint()
    assert "no session_contract was given" in caplog.text


def test_log_lines_show_under_a_silent_root_logger(capsys: pytest.CaptureFixture[str]) -> None:
    errors_only = logging.StreamHandler()
    errors_only.setLevel(logging.ERROR)
    logging.getLogger("yeto_learner").setLevel(logging.NOTSET)
    with root_handlers(errors_only, logging.NullHandler()):
        logs.show_log_lines()
        logs.show_log_lines()
        logging.getLogger("yeto_learner.connection").info("a line of the learner")
        assert capsys.readouterr().err.count("a line of the learner") == 1


def test_a_configured_program_is_left_alone() -> None:
    package = logging.getLogger("yeto_learner")
    with root_handlers(logging.StreamHandler()):
        logs.show_log_lines()
        assert package.handlers == []
        assert package.propagate
