"""A small real run on loopback: our syncer, and learners that follow case files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from yeto_proto.conform import sut, trace
from yeto_proto.conform.server_role import Server

WAIT_S = 300
TRACES = tuple(trace.load_corpus())
"""The corpus, read once for all modules of tests."""

CASE = next(each for each in TRACES if each.id == "learner-run-two-steps").head["case"]
SETTINGS: Mapping[str, Any] = {
    **next(each for each in TRACES if each.id == "run-two-steps").head["settings"],
    "learners": 2,
    "quorum": 2,
    "total_steps": 6,
}


@contextmanager
def serving(work: Path, settings: Mapping[str, Any] = SETTINGS) -> Iterator[Server]:
    """A syncer that is stopped at the end."""
    server = Server(sut.read(sut.OURS), settings, work)
    try:
        yield server
    finally:
        server.process.stop()


def learn(address: str, work: Path, count: int = 2, streams: int = 2) -> None:
    """Learners train until the run is over, and all of them must end well."""
    with ExitStack() as ending:
        processes = []
        for number in range(count):
            case = {**CASE, "address": address, "learner_id": number, "num_streams": streams}
            path = work / f"learner{number}.json"
            path.write_text(json.dumps(case))
            command = [sys.executable, "-m", "yeto_learner.case", str(path)]
            processes.append(ending.enter_context(subprocess.Popen(command)))
            ending.callback(processes[-1].kill)  # one that waits for a run that failed would wait for good
        assert [each.wait(WAIT_S) for each in processes] == [0] * count
