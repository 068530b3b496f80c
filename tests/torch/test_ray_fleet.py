"""`yeto_learner.ray`: a fleet on a real Ray cluster of this machine, which ends with the test."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.processes import Processes, Running, wait_until
from tests.torch.rig import ENVIRON, EXAMPLES, HERE, SLOW, succeeded

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # without clusters of several machines Ray stays on it
    # A busy machine is no failed one: nothing is given up or killed because it is slow or its memory is used.
    "RAY_health_check_timeout_ms": "120000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_memory_monitor_refresh_ms": "0",
}
STARTS = 5


def start_head(processes: Processes, folder: Path) -> Running:
    """A Ray head on loopback. Ray gives its own start 30 seconds, whatever the machine does meanwhile."""
    for left in reversed(range(STARTS)):
        head = processes.run(
            *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", "0"),
            *("--node-ip-address", "127.0.0.1", "--num-cpus", "2", "--object-store-memory", str(100 << 20)),
            *("--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(folder)),
            environ={**ENVIRON, **LOOPBACK},
        )
        try:
            head.stdout.wait_for("This command will now block forever", SLOW)
            break
        except AssertionError:
            if left == 0 or "timed out during startup" not in head.stdout.text + head.stderr.text:
                raise
            head.wait(SLOW)
    return head


@contextmanager
def cluster(processes: Processes) -> Iterator[dict[str, str]]:
    """The environment that joins a Ray head of this test."""
    folder = Path(tempfile.mkdtemp(prefix="yeto-ray-"))  # short: Ray puts sockets there
    head = start_head(processes, folder)
    try:
        named = folder / "ray_current_cluster"
        wait_until(lambda: named.exists() and ":" in named.read_text(), "Ray's note of its address", SLOW)
        address = named.read_text().strip()
        assert address.startswith("127.0.0.1:"), address
        yield {**ENVIRON, **LOOPBACK, "RAY_ADDRESS": address}
    finally:
        head.signal(signal.SIGTERM)
        head.wait(SLOW)
        shutil.rmtree(folder, ignore_errors=True)


def start(processes: Processes, environ: dict[str, str], *arguments: str) -> Running:
    return processes.run(sys.executable, *arguments, environ=environ)


def test_the_ray_example_and_an_island_that_is_killed(processes: Processes, tmp_path: Path) -> None:
    with cluster(processes) as environ:
        syncer = processes.syncer(
            *("--learners", "2", "--quorum", "2", "--total-steps", "40", "--sync-interval-steps", "50"),
            *("--grace-ms", "20000"),
        )
        fleet = start(processes, environ, str(EXAMPLES / "ray_fleet.py"), f"127.0.0.1:{syncer.port}")
        text = succeeded(fleet)
        syncer.finished(0, SLOW)
        found = re.search(r"distances from the truth: (\d\.\d{4}) (\d\.\d{4})", text)
        assert found, text
        assert found.group(1) == found.group(2), "every learner ends with the same parameters"
        assert float(found.group(1)) < 0.1

        flaky = start(processes, environ, str(HERE / "flaky_fleet.py"), str(tmp_path))
        text = succeeded(flaky)
        assert "results [(0, 0), (1, 2)]" in text
        assert "1 of 2 islands failed for good: island 1: ValueError: never" in text
        assert "kept {0: 'well'}" in text
        assert "no room" in text
        wait_until(lambda: (tmp_path / "killed").exists(), "the killed island left its mark")
