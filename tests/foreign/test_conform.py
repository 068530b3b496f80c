"""Both foreign examples, graded by yeto-conform as any implementation is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.foreign.adapter import INTEROP

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
START = "import sys; from yeto_proto.conform.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("role", ["codec", "client"])
def test_every_case_passes(tmp_path: Path, role: str) -> None:
    """A SHOULD that is missed and a wrong rule id count as failures too."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", START, "run", "--sut", str(INTEROP / "sut.yaml"), "--role", role),
            *("--strict", "--timeout", "300", "--output", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, failed, skipped = (int(word) for word in done.stdout.split()[-6:] if word.isdigit())
    assert (failed, skipped) == (0, 0)
    assert passed > 50
