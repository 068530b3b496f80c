"""What `make` does when the machine is not as it should be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NO_VENV = """\
#!/bin/sh
# As the python3 of a Debian without python3-venv: it leaves an interpreter behind, and fails.
if [ "$1" = -m ]; then
    mkdir -p "$3/bin"
    ln -s "{python}" "$3/bin/python"
    exit 1
fi
exec "{python}" "$@"
"""
OLD = "#!/bin/sh\nexit 1\n"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            NO_VENV.format(python=sys.executable),
            "error: ./python3 cannot make .venv; on Debian and Ubuntu install",
        ),
        (OLD, "error: ./python3 is older than Python 3.11;"),
    ],
    ids=["no venv", "old"],
)
def test_a_python_of_no_use_is_named_and_leaves_nothing_behind(
    tmp_path: Path, script: str, told: str
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / "python3"
    python.write_text(script)
    python.chmod(0o755)
    environ = {**os.environ, "MAKEFLAGS": ""}  # not those of a make that runs the tests
    for _ in range(2):  # the second one must not take what the first one left
        done = subprocess.run(
            ("make", "demo", "PYTHON=./python3"),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 2 and told in done.stderr, done.stdout + done.stderr
        assert not (tmp_path / ".venv").exists()
