"""A small real run on loopback: our syncer, and learners that follow case files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yeto_proto.conform import sut, trace
from yeto_proto.conform.server_role import Server

CASE = next(each for each in trace.load_corpus() if each.id == "learner-run-two-steps").head["case"]
SETTINGS: Mapping[str, Any] = {
    **next(each for each in trace.load_corpus() if each.id == "run-two-steps").head["settings"],
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
    processes = []
    for number in range(count):
        case = {**CASE, "address": address, "learner_id": number, "num_streams": streams}
        path = work / f"learner{number}.json"
        path.write_text(json.dumps(case))
        processes.append(subprocess.Popen([sys.executable, "-m", "yeto_learner.case", str(path)]))
    assert [each.wait(60) for each in processes] == [0] * count
