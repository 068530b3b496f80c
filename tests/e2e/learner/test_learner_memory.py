"""How much memory a learner needs while the whole model arrives: its anchors, one fragment, a few chunks."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from tests.e2e.processes import Processes
from tests.e2e.scripted_syncer import WAIT, Peer, ScriptedSyncer

NUMEL = 9_000_000  # above 32 MiB the C library gives memory back at once
FRAGMENTS = 5
MIB = 1 << 20

LEARNER = f"""
import re, sys
from pathlib import Path
import numpy as np
from yeto_learner import Learner

def peak():
    # Not ru_maxrss, which a process inherits from the one that started it.
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

arrays = {{f"w{{number}}": np.zeros({NUMEL}, np.float32) for number in range({FRAGMENTS})}}
for array in arrays.values():
    array += 1
before = peak()
learner = Learner(arrays, sys.argv[1], learner_id=1, num_fragments={FRAGMENTS}, dtype="f32", num_streams=2,
                  session_contract="memory", receive_budget=1)
with learner:
    assert learner.versions == [5] * {FRAGMENTS}, learner.versions
    print("peak", peak() - before, flush=True)
    if sys.argv[2:] == ["catch-up"]:
        while learner.versions != [6] * {FRAGMENTS}:
            learner.client.wait_for(lambda: learner.client.has_updates, 60)
            for array in arrays.values():
                array[:1000] += 1
            learner.step()
        print("caught up", peak() - before, flush=True)
"""


def test_the_first_cut_needs_one_fragment_and_a_few_chunks(processes: Processes) -> None:
    fragment = 4 * NUMEL
    senders: list[threading.Thread] = []

    def admit(peer: Peer) -> None:
        def send() -> None:
            tensor = np.ones(NUMEL, np.float32).tobytes()
            for number in range(FRAGMENTS):
                peer.broadcast(number, 5, tensor)

        senders.append(threading.Thread(target=send))
        senders[0].start()

    with ScriptedSyncer(admit=admit) as syncer:
        learner = processes.run(sys.executable, "-c", LEARNER, syncer.address)
        grown = int(learner.stdout.wait_for(r"^peak (\d+)$", 2 * WAIT).group(1))
        assert learner.wait() == 0
        senders[0].join(WAIT)
    anchors = FRAGMENTS * fragment
    assert grown < anchors + fragment + 40 * MIB, f"{grown / MIB:.0f} MiB, anchors are {anchors / MIB:.0f}"
    assert grown > anchors  # what is measured is there at all


@pytest.mark.full
def test_a_catch_up_after_a_redial_needs_no_more(processes: Processes) -> None:
    fragment = 4 * NUMEL
    senders: list[threading.Thread] = []

    def admit(peer: Peer) -> None:
        version = 5 + len(senders)

        def send() -> None:
            tensor = np.full(NUMEL, version, np.float32).tobytes()
            for number in range(FRAGMENTS):
                peer.broadcast(number, version, tensor)

        senders.append(threading.Thread(target=send))
        senders[-1].start()

    with ScriptedSyncer(admit=admit) as syncer:
        learner = processes.run(sys.executable, "-c", LEARNER, syncer.address, "catch-up")
        learner.stdout.wait_for(r"^peak \d+$", 2 * WAIT)
        syncer.next_peer().close()
        grown = int(learner.stdout.wait_for(r"^caught up (\d+)$", 3 * WAIT).group(1))
        assert learner.wait() == 0
        for sender in senders:
            sender.join(WAIT)
    anchors = FRAGMENTS * fragment
    assert grown < anchors + fragment + 40 * MIB, f"{grown / MIB:.0f} MiB, anchors are {anchors / MIB:.0f}"
