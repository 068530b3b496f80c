"""The code blocks of the documentation, and how a test runs them.

A `console` block holds commands behind `$ `; other lines are what they print. The commands of a page run one
after the other in a folder of its own, as a reader would type them. Servers and learners stay in the
background: learners and recorders until the next command that is neither, by which they must have ended
well; servers until the page ends or starts another one. `pip install` only looks whether it could be done.
A block with a `title` is a file of that name. All other Python blocks of a page are one script, behind
`setup/<page>.py` if there is one. `<!-- not run: why -->` before a block takes it out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.processes import Processes, Running, reserved_port

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
DOCS = SITE / "docs"
SETUP = Path(__file__).parent / "setup"
EXAMPLES = DOCS / "examples"
PORTS = ("29400", "29401", "29402")
LIMIT_S = 600.0
ALONE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""Processes of torch leave the other core to other tests, and stay on this machine."""
CASE_LIMIT_S = 300
"""How long a step of a conformance case may take on a busy machine."""
BUSY = re.compile("when the machine is less busy|nothing moved for|no (answer|handshake) within")
"""What a demo says when its processes were held up for so long that the run shows nothing, and what
`yeto-learner doctor` says when it was the syncer."""
TRIES = 5

_FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>[a-z]*)(?: title="(?P<title>[^"]+)")?[^\n]*\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_SKIP = re.compile(r"<!-- not run: (?P<why>[^>]+?) -->\s*\Z")
_SNIPPET = re.compile(r'^--8<-- "(?P<path>[^"]+)"$', re.M)
_VARIABLES = re.compile(r"^(\w+=(\$\([^)]*\)|\S)* )+")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `why` tells why it is not run, if it is not. `program` is the file that it shows,
    which takes arguments and peers and has a test of its own; `title` is the name of the file that it is."""

    page: Path
    line: int
    language: str
    text: str
    why: str | None
    program: str | None
    title: str | None

    @property
    def commands(self) -> list[str]:
        """What a reader would type; a backslash at the end of a line joins the next."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def pages() -> list[Path]:
    """Every page that people wrote."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """A short name, as `start/demo`."""
    base = DOCS if page.is_relative_to(DOCS) else ROOT
    return page.relative_to(base).with_suffix("").as_posix()


def blocks(page: Path) -> list[Block]:
    """The blocks of one page."""
    return parse(page, page.read_text(encoding="utf-8"))


def parse(page: Path, text: str) -> list[Block]:
    """The blocks of a text of the page."""
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        skip = _SKIP.search(before)
        indent = match["indent"]
        body = re.sub(f"^{indent}", "", match["text"], flags=re.M)
        program = _SNIPPET.fullmatch(body.strip())
        found.append(
            Block(
                page,
                before.count("\n") + 1,
                match["language"],
                "" if program else body,
                skip and skip["why"],
                program and program["path"],
                match["title"],
            )
        )
    return found


def runnable(page: Path) -> list[Block]:
    """The blocks that are commands or Python, those that are not run included."""
    return [each for each in blocks(page) if each.language in ("console", "python")]


@dataclass
class PageRun:
    """A page that is being followed in `folder`."""

    page: Path
    folder: Path
    processes: Processes
    ports: dict[str, int] = field(default_factory=dict)
    servers: list[Running] = field(default_factory=list)
    learners: list[tuple[str, Running]] = field(default_factory=list)
    home: Path = ROOT
    """The checkout, in which `make` and what stands in it are called."""

    def follow(self) -> None:
        """Do what the page says; raises AssertionError with the command that failed."""
        with ExitStack() as held:
            self.ports = {port: held.enter_context(reserved_port()) for port in PORTS}
            self.follow_blocks()

    def follow_blocks(self) -> None:
        """Do what the page says, with ports that nobody else takes meanwhile."""
        for path in EXAMPLES.iterdir():
            if path.is_file():
                shutil.copy(path, self.folder)
        for block in blocks(self.page):
            if block.title:
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
        todo = [each for each in runnable(self.page) if each.why is None]
        for block in todo:
            for command in block.commands:
                self.run(command)
        script = "\n".join(each.text for each in todo if each.language == "python" and not each.title)
        if script:
            self.python(script)
        self.end_servers()

    def end_servers(self) -> None:
        """Wait for the learners, then stop what still serves in an orderly way."""
        self.end_learners()
        for server in self.servers:
            if server.process.poll() is None:
                server.signal(signal.SIGTERM)
            assert server.wait(self.left()) == 0, server.stderr.text
        self.servers.clear()

    def end_learners(self) -> None:
        """Wait for the learners and recorders."""
        for command, learner in self.learners:
            code = learner.wait(self.left())
            assert code == 0, f"{command}\n{learner.stdout.text}\n{learner.stderr.text}"
        self.learners.clear()

    def run(self, command: str) -> None:
        """Run one command, or start it when it is a server or a learner. Nothing listens beyond loopback."""
        command = command.replace("0.0.0.0", "127.0.0.1")
        if command.startswith("pip install "):
            command = command.replace("pip install", "python -m pip install --quiet --dry-run", 1)
            self.done(list(self.shell(command)), command, self.home)
            return
        if command.startswith("yeto-conform run "):
            command = f"yeto-conform run --timeout {CASE_LIMIT_S} {command.removeprefix('yeto-conform run ')}"
        if command.startswith(("make ", ". ")) or " site/docs/" in command:
            # Two pages may run the demo at the same time: each needs a folder of its own.
            output = f"--output {self.folder / 'build'}" if command.startswith("make demo") else ""
            self.done(["/bin/sh", "-c", command], command, self.home, ARGS=output)
            return
        argv = shlex.split(_VARIABLES.sub("", self.ported(command)), comments=True)
        if is_server(argv):
            self.end_servers()  # a reader who starts another one has stopped the one before
            server = self.start(command, "" if "--port" in argv else f" --port {self.ports[PORTS[0]]}")
            server.stdout.wait_for(r"^listening on ", self.left())
            self.servers.append(server)
        elif argv[:2] == ["yeto-conform", "record"] and "--listen" in argv:
            recorder = self.start(command)
            recorder.stdout.wait_for(r"^recording on ", self.left())
            self.learners.append((command, recorder))
        elif argv[0] in ("python", "torchrun") and any(port in command for port in PORTS):
            self.learners.append((command, self.start(command)))
        else:
            self.end_learners()
            self.done(list(self.shell(command)), command, self.folder)

    def start(self, command: str, more: str = "") -> Running:
        """Start a command that goes on in the background."""
        return self.processes.run(*self.shell(command, more), cwd=self.folder, environ=self.path)

    def ported(self, text: str) -> str:
        """The text with the ports of this run; the machine in the middle is this one."""
        text = text.replace("syncer.local", "127.0.0.1")
        return re.sub("|".join(PORTS), lambda match: str(self.ports[match[0]]), text)

    def left(self) -> float:
        """Seconds that a wait may take from now on."""
        return LIMIT_S

    def python(self, script: str) -> None:
        """Run the Python of the page as one script."""
        setup = SETUP / f"{name_of(self.page).replace('/', '_')}.py"
        before = setup.read_text(encoding="utf-8") if setup.exists() else ""
        path = self.folder / "blocks.py"
        text = self.ported(before + script).replace("@ROOT@", str(ROOT))
        path.write_text(text, encoding="utf-8")
        self.done([sys.executable, str(path)], f"the Python of {name_of(self.page)}", self.folder)

    def shell(self, command: str, more: str = "") -> tuple[str, ...]:
        """The command in a shell, on the port of this run. A plain one replaces the shell, for signals."""
        plain = re.match(r"[a-z-]+ ", command) and not re.search(r"[|;&$]", command)
        line = ("exec " if plain else "") + self.ported(command) + more
        return ("/bin/sh", "-c", line)

    def done(self, command: list[str], shown: str, cwd: Path, **environ: str) -> None:
        """Run to the end and expect success. What says that the machine was too busy is run again."""
        for _ in range(TRIES):
            running = self.processes.run(*command, cwd=cwd, environ={**self.path, **environ})
            code = running.wait(self.left())
            if code == 0 or not BUSY.search(running.stdout.text + running.stderr.text):
                break
        assert code == 0, f"{shown}: exit code {code}\n{running.stdout.text}\n{running.stderr.text}"

    @property
    def path(self) -> dict[str, str]:
        """An environment in which `python` and the commands are those of the tests."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A make that started the tests must not hand its own arguments down to theirs.
        return {"PATH": path, "MAKEFLAGS": "", "ARGS": "", "PIP_RETRIES": "10", **ALONE}


def is_server(argv: list[str]) -> bool:
    """Whether a command is a syncer that serves."""
    leaves = {"--help", "--version", "--print-config", "--print-profile"}
    return argv[0] == "yeto-syncer" and "plan" not in argv[1:2] and not leaves & set(argv)


def loose_commands(page: Path) -> Iterator[str]:
    """Commands that stand in blocks of another language, where nobody would run them."""
    for block in blocks(page):
        if block.language in ("", "text", "bash", "sh", "shell"):
            for line in block.text.splitlines():
                if re.match(r"(\$ )?(yeto-[a-z]+ |make |pip |python3? |git )", line):
                    yield f"{name_of(page)}:{block.line}: {line}"
