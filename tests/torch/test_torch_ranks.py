"""`TorchLearner`: a module on two processes sends and installs what the plain module does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.learner.rig import Initializer
from tests.e2e.processes import Processes
from tests.e2e.scripted_syncer import Peer, ScriptedSyncer
from tests.torch.rig import HERE, SLOW, script, succeeded, torchrun
from yeto_learner import Learner
from yeto_proto._generated import messages as wire

WORKER = str(HERE / "rank_worker.py")

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


@dataclass
class Seen:
    """All that a learner sent, and what its ranks held in the end."""

    inits: dict[int, bytes] = field(default_factory=dict)
    pushes: list[tuple[int, bytes]] = field(default_factory=list)
    tokens_a_step: set[float] = field(default_factory=set)
    ranks: list[dict[str, npt.NDArray[np.float32]]] = field(default_factory=list)
    statuses: list[list[int]] = field(default_factory=list)


def values(numel: int, seed: int) -> bytes:
    return np.random.default_rng(seed).normal(size=numel).astype("<f4").tobytes()


def converse(peer: Peer, seen: Seen) -> None:
    """A short run: INIT, two answers of each fragment with a broadcast between them, the final cut."""
    count = peer.session.num_fragments
    for _ in range(count):
        message = peer.expect(wire.InitParams, SLOW)
        seen.inits[message.fragment_id] = bytes(message.tensor)
    for number in range(count):
        peer.broadcast(number, 0, seen.inits[number])
    for first in (1, 1 + count):
        for number in range(count):
            peer.send(wire.PullReq(number, first + number, 1))
            push = peer.expect(wire.PushFragment, SLOW)
            seen.pushes.append((push.fragment_id, bytes(push.delta)))
            seen.tokens_a_step.add(push.c_tokens / push.c_steps)
        for number in range(count):
            version = first + number
            peer.broadcast(number, version, values(peer.session.numel(number), version))
    for number in range(count):
        peer.send_chunked(
            wire.FinalFragment(number, 3 + number, values(peer.session.numel(number), 90 + number))
        )
    peer.send(wire.FinalManifest(3 + count - 1, tuple(3 + number for number in range(count))))
    peer.expect(wire.FinalAck, SLOW)
    peer.send(wire.Shutdown())


def run(processes: Processes, folder: Path, kind: str, ranks: int) -> Seen:
    seen = Seen()
    folder.mkdir()
    with ScriptedSyncer() as syncer:
        arguments = (WORKER, kind, syncer.address, str(folder))
        worker = script(processes, *arguments) if ranks == 1 else torchrun(processes, ranks, *arguments)
        converse(syncer.next_peer(SLOW), seen)
        succeeded(worker)
        assert syncer.accepted == 2, "one control and one data socket: only rank 0 talks"
    for rank in range(ranks):
        with np.load(folder / f"rank{rank}.npz") as file:
            seen.statuses.append(file["status"].tolist())
            seen.ranks.append({name: file[name] for name in file.files if name != "status"})
    return seen


def test_ddp_and_fsdp2_send_and_install_what_the_plain_module_does(
    processes: Processes, tmp_path: Path
) -> None:
    plain = run(processes, tmp_path / "plain", "plain", 1)
    assert len(plain.inits) == 2
    assert [number for number, _ in plain.pushes] == [0, 1, 0, 1]
    first, second = (dict(plain.pushes[:2]), dict(plain.pushes[2:]))
    assert first != second
    assert all(np.frombuffer(delta, np.float32).any() for delta in first.values())
    layout = Learner(
        {name: array for name, array in plain.ranks[0].items() if not name.startswith("2.")},
        "127.0.0.1:1",
        num_fragments=2,
    ).layout
    for number, fragment in enumerate(layout.fragments):
        cut, start = np.frombuffer(values(fragment.numel, 90 + number), np.float32), 0
        for tensor in fragment.tensors:
            got = plain.ranks[0][tensor.name].reshape(-1)
            np.testing.assert_allclose(got, cut[start : start + tensor.numel], rtol=2**-8)
            start += tensor.numel
    for kind in ("ddp", "fsdp2"):
        seen = run(processes, tmp_path / kind, kind, 2)
        assert seen.inits == plain.inits
        assert seen.pushes == plain.pushes
        assert (plain.tokens_a_step, seen.tokens_a_step) == ({1.0}, {3.0})  # 1 + 2: added up over the ranks
        assert seen.statuses[0] == seen.statuses[1]
        assert seen.statuses[0][:2] == plain.statuses[0][:2] == [1, 4]
        for values_of_rank in seen.ranks:
            assert set(values_of_rank) == set(plain.ranks[0])
            for name, array in plain.ranks[0].items():
                np.testing.assert_array_equal(values_of_rank[name], array, err_msg=name)


def test_every_rank_hears_of_a_failure_and_nobody_hangs(processes: Processes) -> None:
    with ScriptedSyncer(Initializer()) as syncer:
        text = succeeded(torchrun(processes, 2, str(HERE / "failing_ranks.py"), syncer.address))
    said = {tuple(line.split(" | ")[:2]): line.split(" | ")[2] for line in text.splitlines() if " | " in line}
    for rank in ("rank 0", "rank 1"):
        assert said["other models", rank].startswith(
            "ValueError: ranks [1] hold other parameters than rank 0"
        )
        assert said["well again", rank] == "nothing"
    assert said["bad option", "rank 0"].startswith("ValueError: num_fragments must be a whole number")
    assert said["bad option", "rank 1"].startswith("OtherRankError: rank 0 failed: ValueError: num_fragments")
    assert said["replaced", "rank 0"].startswith("OtherRankError: another rank of this learner refused")
    assert said["replaced", "rank 1"].startswith("ValueError: parameter 'weight' was replaced")
    assert said["no final cut", "rank 0"].startswith("TimeoutError: no FINAL_MANIFEST arrived")
    assert said["no final cut", "rank 1"].startswith("OtherRankError: rank 0 failed: TimeoutError")
    assert said["no connection", "rank 0"] == "nothing"
    assert "rank 1 has no connection of its own" in said["no connection", "rank 1"]
