"""A newcomer: from a fresh clone, by what the pages say and nothing else, to a second learner in a run.

That takes less than ten minutes. What is judged is the time of the processors, which depends far less on what
else the machine has to do, with half as much again for a machine that is slow because it is shared; what the
clock shows is printed.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.blocks import LIMIT_S, ROOT, Block, PageRun, blocks, parse
from tests.e2e.processes import Processes, Running, reserved_port

MOST_PROCESSOR_S = 900.0
NOT_COPIED = shutil.ignore_patterns(".venv", "build", "dist", ".git", "*.egg-info", "__pycache__", ".*_cache")


def clone(folder: Path) -> None:
    """A clone of this checkout, with what it has that is not committed; a copy where it is no repository."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
        return
    trusting = folder.with_name("gitconfig")  # the checkout may belong to another user, as in a container
    trusting.write_text("[safe]\n\tdirectory = *\n", encoding="utf-8")

    def git(*arguments: str) -> str:
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": str(trusting)}
        done = subprocess.run(
            ("git", "-C", ROOT, *arguments), env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("clone", "--quiet", str(ROOT), str(folder))
    for name in git("ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        elif name:
            target.unlink(missing_ok=True)


def section(page: Path, title: str) -> list[Block]:
    """The blocks under one heading of a page."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None, f"{page.name} has no section {title!r}"
    return parse(page, found[1])


@dataclass
class Newcomer(PageRun):
    """Somebody with a clone and a Python, and with nothing installed."""

    entered: str = ""
    """What was typed to enter the environment: the first thing in every terminal."""
    all_learners: list[Running] = field(default_factory=list)
    all_servers: list[Running] = field(default_factory=list)

    @property
    def path(self) -> dict[str, str]:
        """The newcomer's environment: that of the tests without what they have installed."""
        folders = os.environ["PATH"].split(os.pathsep)
        if sys.prefix != sys.base_prefix:
            folders = [
                each for each in folders if Path(each).resolve() != Path(sys.executable).parent.resolve()
            ]
        python = next(Path(sys.base_prefix, "bin").glob("python3"), Path("python3"))
        return {
            **super().path,
            "PATH": os.pathsep.join(folders),
            "PYTHON": str(python),
            "PYTHONPATH": "",
            "VIRTUAL_ENV": "",
        }

    def run(self, command: str) -> None:
        super().run(command)
        if command.startswith(". "):
            self.entered = f"{command} && "
        self.all_learners += [each for _, each in self.learners if each not in self.all_learners]
        self.all_servers += [each for each in self.servers if each not in self.all_servers]

    def shell(self, command: str, more: str = "") -> tuple[str, ...]:
        *shell, line = super().shell(command, more)
        return (*shell, self.entered + line)

    def read(self, found: list[Block]) -> None:
        """Do what these blocks say: save the programs, type the commands."""
        for block in found:
            if block.program:
                # The page in the checkout shows no program, it says where there is one.
                page = block.page.read_text(encoding="utf-8")
                link = re.search(rf"\(([^()\s]*\b{Path(block.program).name})\)", page)
                assert link is not None, f"{block.page} does not say where {block.program} is"
                source = block.page.parent / link[1]
                (self.folder / source.name).write_bytes(source.read_bytes())
            for command in block.commands if block.why is None else ():
                self.run(command)


@contextmanager
def newcomer(home: Path, processes: Processes) -> Iterator[Newcomer]:
    """A newcomer with a clone in `home`, and a port that nobody else takes."""
    with reserved_port() as port:
        ports = {"29400": port, "29401": 0, "29402": 0}
        yield Newcomer(home / "README.md", home, processes, ports, home=home)


def processor_s() -> float:
    """Seconds that the children of this process, and theirs, have used when they were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_from_a_clone_to_a_second_learner_within_ten_minutes(tmp_path: Path, processes: Processes) -> None:
    home = tmp_path / "yeto"
    started, used = time.monotonic(), processor_s()
    clone(home)
    assert not (home / ".venv").exists()
    with newcomer(home, processes) as person:
        person.read(section(home / "README.md", "Try it"))
        link = re.search(r"\[Your own model\]\((\S+)\)", (home / "README.md").read_text(encoding="utf-8"))
        assert link is not None, "README does not say where to go on"
        person.read([each for each in blocks(home / link[1]) if each.language == "console" or each.program])
        [syncer], learners = person.all_servers, person.all_learners
        assert len(learners) == 2
        syncer.stderr.wait_for(r"learner connected learner=", LIMIT_S, count=2)
        print(f"a second learner has joined after {time.monotonic() - started:.0f} s")
        person.end_servers()
    for learner_id in (0, 1):
        assert re.search(rf"learner connected learner={learner_id}\b", syncer.stderr.text)
    assert "training complete at step 40" in syncer.stderr.text
    assert learners[0].stdout.text and learners[0].stdout.text == learners[1].stdout.text
    assert processor_s() - used < MOST_PROCESSOR_S


def test_a_clone_has_what_is_not_committed_and_nothing_that_is_ignored(tmp_path: Path) -> None:
    home = tmp_path / "yeto"
    clone(home)
    for name in ("README.md", "site/docs/model.md", "tests/docs/test_newcomer.py"):
        assert (home / name).read_bytes() == (ROOT / name).read_bytes()
    assert not [name for name in (".venv", "build", ".pytest_cache") if (home / name).exists()]
