"""`SyncerClient`: arguments, dialling and the greeting."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.learner.rig import SMALL
from tests.e2e.processes import reserved_port
from tests.e2e.scripted_syncer import WAIT, ScriptedSyncer
from yeto_learner import SyncerClient, channel, connection
from yeto_proto._generated import messages as wire
from yeto_proto._generated.constants import HEADER_BYTES
from yeto_proto._generated.types import MergeMode
from yeto_proto.codec import encode
from yeto_proto.layout import Fragment, Layout, Tensor

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "frames.json").read_text())


def test_the_greeting_is_the_documented_bytes(syncer: ScriptedSyncer) -> None:
    vector = next(each for each in VECTORS["messages"] if each["name"] == "HELLO")
    layout = Layout((Fragment(MergeMode.RDA, (Tensor("model.body.weight", 4),)),))
    with SyncerClient(syncer.address, 7, layout, "f32", 3) as client:
        peer = syncer.next_peer()
        expected = bytearray.fromhex(vector["frame_hex"])
        generation = client.connection_generation
        expected[HEADER_BYTES + 6 : HEADER_BYTES + 14] = generation.to_bytes(8, "little")
        assert peer.hello_bytes == bytes(expected)
        assert sorted(peer.data_hellos) == [
            b"".join(encode(wire.DataHello(7, generation, index))) for index in range(3)
        ]
        # The control socket comes first.
        assert [peer.accepted[stream] for stream in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("streams", [0, 1, 5])
def test_one_control_socket_and_as_many_data_sockets_as_asked(
    syncer: ScriptedSyncer, make: Callable[..., SyncerClient], streams: int
) -> None:
    make(num_streams=streams)
    peer = syncer.next_peer()
    assert sorted(peer.streams) == list(range(streams + 1))
    assert peer.hello.num_streams == streams
    assert peer.hello.connection_generation != 0


def test_a_key_seals_the_greeting(make: Callable[..., SyncerClient]) -> None:
    with ScriptedSyncer(key=b"k3y") as sealed:
        client = SyncerClient(sealed.address, 0, SMALL, "f32", 1, hmac_key="k3y")
        with client:
            assert sealed.next_peer().hello == client._hello(client.connection_generation)


def test_contract_and_profile_are_sent(make: Callable[..., SyncerClient], syncer: ScriptedSyncer) -> None:
    make(session_contract_hash=b"c" * 32, syncer_profile_hash=b"p" * 32)
    hello = syncer.next_peer().hello
    assert hello.session_contract_hash == b"c" * 32
    assert hello.syncer_profile_hash == b"p" * 32
    assert hello.layout_fingerprint == SMALL.fingerprint()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"learner_id": -1}, "learner_id"),
        ({"learner_id": 2**32}, "learner_id"),
        ({"dtype": "fp8"}, "dtype"),
        ({"num_streams": 257}, "num_streams"),
        ({"num_streams": -1}, "num_streams"),
        ({"session_contract_hash": b"short"}, "session_contract_hash"),
        ({"syncer_profile_hash": b"short"}, "syncer_profile_hash"),
        ({"receive_budget": 0}, "receive_budget"),
        ({"addr": "nowhere:port"}, "HOST:PORT"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, object], text: str) -> None:
    arguments: dict[str, object] = {"addr": "127.0.0.1:1", "learner_id": 0, "layout": SMALL, **options}
    with pytest.raises(ValueError, match=text):
        SyncerClient(**arguments)  # type: ignore[arg-type]


def test_an_unreachable_syncer_is_one_clear_error() -> None:
    with reserved_port() as port:
        client = SyncerClient(f"127.0.0.1:{port}", 0, SMALL, connect_timeout=0.2)
        with pytest.raises(ConnectionError, match=re.escape(f"no syncer at 127.0.0.1:{port} within 0.2 s")):
            client.start()
        client.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("yeto-")] == []


def watch_dials(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a dial has failed."""
    failed_once = threading.Event()
    dial = channel.dial

    def watched(*arguments: object) -> object:
        try:
            return dial(*arguments)  # type: ignore[arg-type]
        except OSError:
            failed_once.set()
            raise

    monkeypatch.setattr(connection, "dial", watched)
    return failed_once


def test_a_syncer_that_starts_later_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "FIRST_DIAL_WAIT", 0.01)
    failed_once = watch_dials(monkeypatch)
    with reserved_port() as port:
        client = SyncerClient(f"127.0.0.1:{port}", 0, SMALL, num_streams=1, connect_timeout=WAIT)
        starter = threading.Thread(target=client.start)
        starter.start()
        assert failed_once.wait(WAIT)
        with ScriptedSyncer(port=port) as late:
            assert late.next_peer().complete
            starter.join(WAIT)
            assert client.connected
            client.close()
    told = [each.getMessage() for each in caplog.records if "no syncer at" in each.getMessage()]
    assert len(told) == 1, "the wait is told once, not at each try"
    assert told[0].startswith(f"no syncer at 127.0.0.1:{port} yet (")


def test_closing_ends_a_patient_start(monkeypatch: pytest.MonkeyPatch) -> None:
    failed_once = watch_dials(monkeypatch)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            client.start()
        except ConnectionError as error:
            errors.append(error)

    with reserved_port() as port:
        client = SyncerClient(f"127.0.0.1:{port}", 0, SMALL, connect_timeout=900)
        starter = threading.Thread(target=start)
        starter.start()
        assert failed_once.wait(WAIT)
        client.close()
        starter.join(WAIT)
        assert not starter.is_alive()
    assert "closed while it was connecting" in str(errors[0])
