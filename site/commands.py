"""Pages of the command line: the flags of the syncer from its own table, and what each command's --help says.

Nothing about a flag is written twice. Only when to change it stands in `advice.toml`, and a setting without
advice, or advice without a setting, ends the build.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from yeto_syncer.cli import SECTION_TITLES
from yeto_syncer.shell.settings import SETTINGS, SWITCH, Setting

HERE = Path(__file__).resolve().parent
WIDTH = 100

COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "yeto-syncer": ("yeto_syncer", ("plan",)),
    "yeto-learner": ("yeto_learner", ("demo", "doctor", "layout")),
    "yeto-checkpoint": (
        "yeto_syncer.checkpoint.cli",
        ("inspect", "verify", "export", "diff", "migrate", "hash"),
    ),
    "yeto-conform": ("yeto_proto.conform.cli", ("run", "list", "show", "record", "mutants")),
    "yeto-tape": ("yeto_syncer.tape_cli", ("summary", "report", "follow", "forward", "check")),
}


def flags_page() -> str:
    """Every setting of `yeto-syncer` with default, unit and when to change it."""
    advice = tomllib.loads((HERE / "advice.toml").read_text(encoding="utf-8"))
    _same(advice)
    lines = [
        "# Flags of yeto-syncer",
        "",
        "Made from the program itself. Each setting may be given as a flag, in the environment "
        "(`YETO_SYNCER_` and the name in capitals), or in the `--config` file (the name with underscores); "
        "flags win over the environment, the environment over the file, the file over the preset.",
    ]
    for section, title in SECTION_TITLES.items():
        lines += [
            "",
            f"## {title.capitalize()}",
            "",
            "| flag | default | what it is | when to change it |",
            "|---|---|---|---|",
        ]
        lines += [_row(each, advice[section][each.name]) for each in SETTINGS if each.section == section]
    return "\n".join(lines) + "\n"


def _same(advice: dict[str, dict[str, str]]) -> None:
    known = {(each.section, each.name) for each in SETTINGS}
    given = {(section, name) for section, names in advice.items() for name in names}
    for section, name in sorted(known - given):
        raise SystemExit(f"error: no advice for [{section}] {name}; site/advice.toml; say when to change it")
    for section, name in sorted(given - known):
        raise SystemExit(f"error: [{section}] {name} is no setting; site/advice.toml; take the line out")


def _row(setting: Setting, when: str) -> str:
    kind = "" if setting.kind is SWITCH else f" {setting.kind.name}"
    default = "off" if setting.default is False else "on" if setting.default is True else setting.default
    if setting.required:
        default = "required"
    elif setting.default in (None, ()):
        default = setting.unset
    unit = f" {setting.unit}" if setting.unit and setting.default not in (None, ()) else ""
    cells = (f"`{setting.flag}{kind}`", f"{default}{unit}", setting.help, when)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def commands_page() -> str:
    """What every command says about itself."""
    lines = ["# Commands", "", "What each command prints with `--help`."]
    for name, (module, subcommands) in COMMANDS.items():
        lines += ["", f"## {name}", "", "```text", _help(module), "```"]
        for subcommand in subcommands:
            lines += ["", f"### {name} {subcommand}", "", "```text", _help(module, subcommand), "```"]
    return "\n".join(lines) + "\n"


def _help(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments, "--help"]
    environ = {**os.environ, "COLUMNS": str(WIDTH)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout.rstrip()


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of each page."""
    yield "flags.md", flags_page()
    yield "commands.md", commands_page()
