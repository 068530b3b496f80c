"""The wheel and the sdist: complete, and enough by themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.docs.blocks import BUSY, TRIES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("yeto_proto", "yeto_syncer", "yeto_learner")
NO_SOURCES = (".*", "__pycache__", "build", "dist", "*.egg-info")


def run(*command: str | Path, cwd: Path, timeout: float = 900) -> str:
    """Run a program with nothing of this tree in its environment; returns its standard output.

    A demo that says that the machine was too busy is run again.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "YETO", "VIRTUAL"))
    }
    environ |= {"PIP_RETRIES": "10", "PIP_DEFAULT_TIMEOUT": "60"}
    for _ in range(TRIES):
        done = subprocess.run(command, cwd=cwd, env=environ, timeout=timeout, capture_output=True, text=True)
        if done.returncode == 0 or not BUSY.search(done.stderr):
            break
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_package_is_listed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(settings["tool"]["setuptools"]["packages"]) == found


def test_the_specification_is_reachable_as_package_data() -> None:
    from importlib.resources import files

    spec = files("yeto_proto") / "spec"
    assert (spec / "yeto.yaml").read_text() == (ROOT / "spec" / "yeto.yaml").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of this tree.

    They are made of a copy: a build writes beside its sources, where other tests read and build meanwhile.
    """
    folder = tmp_path_factory.mktemp("dist")
    tree = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NO_SOURCES), symlinks=True)
    run(sys.executable, "-m", "build", "--outdir", folder, tree, cwd=folder)
    return folder


def spec_files() -> set[str]:
    return {
        f"yeto_proto/spec/{path.relative_to(ROOT / 'spec')}"
        for path in (ROOT / "spec").rglob("*")
        if path.suffix == ".yaml" or path.name == "README.md"
    }


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_wheel_holds_everything_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert spec_files() <= names
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "/spec/" not in str(path)
    }
    assert sources <= names
    wanted = (
        "yeto_syncer/status.html",
        "yeto_learner/demo/templates/report.html",
        "yeto_proto/conform/corpus/rules.json",
    )
    assert names.issuperset(wanted)
    strays = {name for name in names if not name.startswith((*(f"{each}/" for each in PACKAGES), "yeto-"))}
    assert strays == set()


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_empty_environment_runs_the_demo(built: Path, tmp_path: Path, kind: str) -> None:
    [package] = built.glob(kind)
    if kind == "*.tar.gz":
        with tarfile.open(package) as archive:
            assert any(name.endswith("/spec/yeto.yaml") for name in archive.getnames())
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", package, cwd=tmp_path)
    out = run(
        home / "bin" / "yeto-learner",
        "demo",
        "--quick",
        "--output",
        tmp_path / "demo",
        cwd=tmp_path,
    )
    assert "report" in out
    assert list((tmp_path / "demo").rglob("*.html"))
    where = "import yeto_proto; print(yeto_proto.__file__)"
    assert str(home) in run(home / "bin" / "python", "-c", where, cwd=tmp_path)
    for command in ("yeto-syncer", "yeto-learner", "yeto-tape", "yeto-checkpoint", "yeto-conform"):
        assert "0.1.0" in run(home / "bin" / command, "--version", cwd=tmp_path)
    assert "parameters" in run(home / "bin" / "yeto-syncer", "plan", "--help", cwd=tmp_path)
    graded = run(home / "bin" / "yeto-conform", "run", "--role", "codec", "heartbeat.*", cwd=tmp_path)
    assert re.search(r"^[1-9]\d* passed, 0 failed", graded, re.MULTILINE)
    flags = ("--learners", "1", "--total-steps", "1", "--metrics-port", "0")
    refused = subprocess.run(
        [home / "bin" / "yeto-syncer", *flags], capture_output=True, text=True, timeout=300
    )
    assert refused.returncode == 1 and "install yeto[metrics]" in refused.stderr
