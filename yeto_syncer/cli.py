"""`yeto-syncer`: from the command line to a running server, and from its end to an exit code.

Exit codes (D23): 0 complete or stopped gracefully, 1 a setting or a run that failed, 2 command-line syntax,
130 and 143 for a second SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from yeto_proto.console.early import leave_at_once
from yeto_proto.console.output import fail, put
from yeto_proto.console.parser import Parser
from yeto_syncer.core.config import Config, Problem
from yeto_syncer.shell.resolve import BadValueError, Resolved, resolve, unknown_variables
from yeto_syncer.shell.settings import SETTINGS, SWITCH, Setting

EXAMPLES = """\
examples:
  two learners, 1000 steps, on this machine:
    yeto-syncer --learners 2 --total-steps 1000
  a training run that a supervisor may restart with the same line:
    yeto-syncer --learners 8 --quorum 6 --total-steps 4000 --checkpoint-path run/state.ckpt --preset training
  a free port, told to a script:
    yeto-syncer --learners 2 --total-steps 100 --port 0 --port-file run/port
  settings from a file, one of them overridden; show the outcome and leave:
    yeto-syncer --config run/syncer.toml --grace-ms 500 --print-config
  what a run will need in memory, disk and time (yeto-syncer plan --help):
    yeto-syncer plan --parameters 7B --learners 8 --link 10Gbit --fragments 16

Every setting may also stand in the environment (YETO_SYNCER_GRACE_MS=500) or in the --config file
(grace_ms = 500). Flags win over the environment, the environment over the file, the file over the preset.

exit codes: 0 complete or stopped gracefully; 1 a bad setting or a failed run; 2 command-line syntax;
130 / 143 stopped by a second SIGINT / SIGTERM without a checkpoint
"""

MAX_DOCUMENT = 1 << 20
"""Bytes of a settings file. All settings together take a hundredth of it."""

SECTION_TITLES = {
    "run": "run",
    "rounds": "rounds",
    "merge": "merge and outer step",
    "files": "files",
    "network": "network",
    "security": "security",
    "output": "output",
}


def build_parser() -> Parser:
    """The parser; its result holds only what was given."""
    parser = Parser(
        prog="yeto-syncer",
        usage="yeto-syncer --learners M --total-steps T [flags]\n       yeto-syncer plan [flags]",
        description="The coordinator of a Decoupled DiLoCo run (protocol version 4).",
        epilog=EXAMPLES,
        argument_default=argparse.SUPPRESS,
    )
    groups = {name: parser.add_argument_group(title) for name, title in SECTION_TITLES.items()}
    for setting in SETTINGS:
        add_setting(groups[setting.section], setting)
    output = groups["output"]
    output.add_argument("--config", metavar="FILE", help="Read settings from this TOML file.")
    output.add_argument(
        "--print-config", action="store_true", help="Print every value and where it came from, then leave."
    )
    output.add_argument(
        "--print-profile",
        action="store_true",
        help="Print the profile hash that bound learners must send, then leave.",
    )
    parser.add_version()
    return parser


def add_setting(group: argparse._ArgumentGroup, setting: Setting, **options: Any) -> None:
    """The flag of a setting. `options` are further ones of `add_argument`, such as `default`."""
    options |= {"dest": setting.name, "help": setting.described().replace("%", "%%")}
    if setting.kind is SWITCH:
        group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, **options)
    else:
        group.add_argument(setting.flag, type=typed(setting.kind.parse), metavar=setting.kind.name, **options)


def typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """What argparse needs to read a value with `parse`, whose ValueError tells what is wrong."""

    def apply(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return apply


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command; returns the exit code. `argv` and `environ` stand in for the process's own."""
    leave_at_once(quietly=True)
    argv = sys.argv[1:] if argv is None else argv
    environ = os.environ if environ is None else environ
    if argv and argv[0] == "plan":
        leave_at_once()  # there is no run to stop gracefully
        from yeto_syncer.planner import command

        return command.main(argv[1:])
    parser = build_parser()
    given = vars(parser.parse_args(argv))
    print_config, print_profile = given.pop("print_config", False), given.pop("print_profile", False)
    path = given.pop("config", "")
    try:
        settings = resolve(given, environ, read_document(path), path)
    except BadValueError as error:
        return fail(str(error))
    for setting in SETTINGS:
        if setting.required and settings[setting.name] is None:
            parser.error(f"{setting.flag} is required")
    if print_config:
        return put("\n".join(settings.lines()))
    config = configuration(settings)
    problem = first_problem(config, settings)
    if problem is not None:
        return fail(str(problem))
    if print_profile:
        from yeto_syncer.core.profile import profile_hash

        return put(profile_hash(config).hex())
    from yeto_syncer.shell.run import serve

    _stop_quietly()
    return serve(config, settings, environ, unknown_variables(environ))


def _stop_quietly() -> None:
    # Until the event loop takes over there is no state to lose, but files to close: exit 0 (D22).
    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def read_document(path: str) -> Mapping[str, object]:
    """The TOML file of `--config`, or nothing for an empty path. Raises BadValueError."""
    if not path:
        return {}
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_DOCUMENT + 1)
        if len(content) > MAX_DOCUMENT:
            raise ValueError(f"it is longer than {MAX_DOCUMENT} bytes")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise BadValueError(
            f"cannot read the settings file: {error.strerror}", path, "give a file that can be read"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise BadValueError(f"not a TOML file: {error}", path, "correct the file") from None


def configuration(settings: Resolved) -> Config:
    """The part of the settings that the coordinator decides by."""
    return Config(**{field.name: settings[field.name] for field in fields(Config)})


def first_problem(config: Config, settings: Resolved) -> Problem | None:
    """The first setting that cannot be used, in the order in which they are documented."""
    devices = settings["iso_worker_devices"]
    if not settings["iso_worker_device"]:
        return Problem("--iso-worker-device", "must not be empty", "name a device, such as cuda:0 or cpu")
    if not all(devices):
        return Problem("--iso-worker-devices", "names a device without a name", "name each device once")
    if len(set(devices)) != len(devices):
        return Problem("--iso-worker-devices", "names a device twice", "name each device once")
    if settings["iso_worker_queue_capacity"] == 0:
        return Problem("--iso-worker-queue-capacity", "must be at least 1", "give a number of jobs")
    problems = config.validate()
    if problems:
        return problems[0]
    for setting in SETTINGS:
        if not setting.available and settings[setting.name] != setting.default:
            return Problem(setting.flag, "not available in this version", "leave the flag out")
    if settings["merge_threads"] == 0:
        return Problem("--merge-threads", "must be at least 1", "give a number of threads, or leave it out")
    return None
