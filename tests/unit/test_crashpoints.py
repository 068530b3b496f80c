"""The places where tests let the syncer be killed: nothing stands there in production."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.snapshot_samples import cut
from yeto_syncer.shell import crashpoints
from yeto_syncer.shell.storage import Storage

SAVE = """
import sys
from pathlib import Path
from tests.unit.snapshot_samples import cut
from yeto_syncer.shell.storage import Storage
storage = Storage(Path(sys.argv[1]), None)
for step in range(1, 4):
    storage.save(cut(step=step))
    print("saved", step, flush=True)
"""


def test_without_the_variable_nothing_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert crashpoints.stages("checkpoint") is None and crashpoints.bytes_of("checkpoint") is None

    class Core:
        def step(self, now: float, event: object) -> list[object]:
            raise AssertionError

    def perform(effect: object) -> bool:
        raise AssertionError

    core = Core()
    assert crashpoints.around_effects(perform) is perform
    assert crashpoints.around_events(core) is core  # type: ignore[arg-type,comparison-overlap]
    Storage(tmp_path / "state.ckpt", None).save(cut())
    assert (tmp_path / "state.ckpt").exists()


@pytest.mark.parametrize(
    ("text", "saved", "code"),
    [
        ("checkpoint.synced", 0, -9),
        ("checkpoint.synced:3", 2, -9),
        ("checkpoint.durable:2:SIGTERM", 1, -15),
        ("checkpoint.half:4", 3, 0),
        ("marker.synced", 3, 0),
    ],
)
def test_it_ends_at_the_place_and_time_that_were_named(
    tmp_path: Path, text: str, saved: int, code: int
) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path / "state.ckpt")],
        env={crashpoints.VARIABLE: text, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == [f"saved {step}" for step in range(1, saved + 1)]
