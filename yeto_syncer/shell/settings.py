"""Every setting of `yeto-syncer`, written down once.

The argument parser, the environment, the TOML file, `--print-config` and the reference page are produced from
`SETTINGS`. `resolve` says which of them wins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from unicodedata import category

from yeto_syncer.core.config import (
    DELTA_CORRECTIONS,
    FOLDS,
    ISO_BACKENDS,
    LEARNER_WEIGHTS,
    MAX_U32,
)
from yeto_syncer.shell.logs import LEVELS

Value = Any
"""What a setting holds: an int, float, str, bool, a tuple of them, or None."""

Section = Literal["run", "rounds", "merge", "files", "network", "security", "output"]

ENV_PREFIX: Final = "YETO_SYNCER_"
NOT_HERE: Final = "Not available in this version."
MAX_U16: Final = 2**16 - 1
MAX_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting is written. `name` stands in the help; `parse` takes text and `accept` a TOML value; both
    raise ValueError."""

    name: str
    parse: Callable[[str], Value]
    accept: Callable[[object], Value]
    show: Callable[[Value], str]


def whole(name: str, low: int, high: int) -> Kind:
    """A whole number in `low..high`."""

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"must be {low}..{high}, got {value}")
        return value

    def parse(text: str) -> int:
        if re.fullmatch(r"-?[0-9]+", text) is None:
            raise ValueError(f"must be a whole number, got {text!r}")
        return check(int(text))

    def accept(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, got {value!r}")
        return check(value)

    return Kind(name, parse, accept, str)


def real(name: str) -> Kind:
    """A finite or infinite number; what is allowed is the configuration's business."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"must be a number, got {text!r}") from None

    def accept(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, got {value!r}")
        return float(value)

    def show(value: float) -> str:
        return repr(value) if math.isfinite(value) else str(value)

    return Kind(name, parse, accept, show)


def named(*names: str) -> Kind:
    """One of a few names; the configuration's own validation refuses others."""
    return Kind("|".join(names), _text, _text, _quoted)


def choice(*names: str) -> Kind:
    """One of a few names; others are refused while parsing."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got {text!r}")
        return text

    def accept(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(names)}, got {value!r}")
        return parse(value)

    return Kind("|".join(names), parse, accept, _quoted)


def _quoted(value: str) -> str:
    """A basic string of TOML, which has no control characters in it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(char):04x}" if category(char) == "Cc" else char for char in escaped) + '"'


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be a text that is not empty, got {value!r}")
    return value


def _name(value: object) -> str:
    """Any text; an empty one is refused with the other rules of the command line."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, got {value!r}")
    return value


def _parse_switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"must be 1 or 0, got {text!r}")


def _accept_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")
    return value


def listed(name: str, item: Kind) -> Kind:
    """Several values: separated by commas in text, a list in TOML."""

    def parse(text: str) -> tuple[Value, ...]:
        return tuple(item.parse(part.strip()) for part in text.split(",")) if text.strip() else ()

    def accept(value: object) -> tuple[Value, ...]:
        if not isinstance(value, list):
            raise ValueError(f"must be a list, got {value!r}")
        return tuple(item.accept(part) for part in value)

    def show(value: tuple[Value, ...]) -> str:
        return "[" + ", ".join(item.show(part) for part in value) + "]"

    return Kind(name, parse, accept, show)


U16: Final = whole("U16", 0, MAX_U16)
U32: Final = whole("U32", 0, MAX_U32)
U64: Final = whole("U64", 0, MAX_U64)
REAL: Final = real("NUMBER")
TEXT: Final = Kind("TEXT", _text, _text, _quoted)
NAME: Final = Kind("TEXT", str, _name, _quoted)
PATH: Final = Kind("PATH", _text, _text, _quoted)
SWITCH: Final = Kind("SWITCH", _parse_switch, _accept_switch, lambda value: "true" if value else "false")
IDS: Final = listed("ID,ID,...", U32)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `name` is the TOML key and the field of the configuration, and gives flag and variable.

    A `default` of None means unset, which `unset` describes in the help. `available` is False for what this
    version parses and then refuses.
    """

    name: str
    section: Section
    kind: Kind
    default: Value
    help: str
    unit: str = ""
    unset: str = "unset"
    required: bool = False
    available: bool = True

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    def described(self) -> str:
        """The help text with unit, default and availability."""
        parts = [self.help]
        if not self.available:
            parts.append(NOT_HERE)
        notes = [self.unit] if self.unit else []
        if self.required:
            notes.append("required")
        elif self.kind is not SWITCH:
            notes.append(f"default: {self.unset if self.default in (None, ()) else self.default}")
        if notes:
            parts.append(f"({'; '.join(notes)})")
        return " ".join(parts)


def _s(name: str, section: Section, kind: Kind, default: Value, **more: Any) -> Setting:
    return Setting(name, section, kind, default, **more)


# fmt: off
SETTINGS: Final[tuple[Setting, ...]] = (
    # run
    _s("learners", "run", U32, None, required=True,
       help="M, the number of learner ids, 0 to M-1."),
    _s("total_steps", "run", U64, None, required=True,
       help="Global steps of the run; 0 finalizes right after INIT."),
    _s("min_start_learners", "run", U32, None, unset="all of them",
       help="Start training with this many learners."),
    _s("observers", "run", IDS, (), unset="none",
       help="Learner ids that receive every broadcast but are never asked."),
    _s("learner_budget_steps", "run", U64, None, unit="local steps",
       help="Benchmark: end with an unmarked checkpoint once every learner has reported exactly this many."),
    _s("shutdown_timeout_s", "run", REAL, 600.0, unit="seconds",
       help="After the first SIGTERM or SIGINT, how long gathering rounds may take to close before they are "
       "dropped."),
    _s("preset", "run", choice("training"), None, unset="none",
       help="training = --mark-final-checkpoint --checkpoint-on-start --background-checkpoint "
       "--resume-if-exists; single flags override."),
    # rounds
    _s("quorum", "rounds", U32, 1,
       help="Answers that let a round close; frozen as min(quorum, captured members)."),
    _s("quorum_timeout_s", "rounds", U64, 900, unit="seconds",
       help="A round below its quorum for this long starts a new attempt."),
    _s("grace_ms", "rounds", U64, 1000, unit="milliseconds",
       help="Longest wait for more answers once the quorum is reached."),
    _s("grace_gamma", "rounds", REAL, 0.8,
       help="Share of the expected slack that the grace window may use."),
    _s("grace_tau", "rounds", REAL, 2.0, unit="inner steps",
       help="Inner steps of the slowest learner that the slack is measured by."),
    _s("pipeline", "rounds", U32, 2,
       help="Rounds in flight at once, each on a fragment of its own."),
    _s("min_round_interval_ms", "rounds", U64, 0, unit="milliseconds",
       help="Shortest time from one launch to the next."),
    _s("sync_interval_steps", "rounds", REAL, 24.0, unit="inner steps",
       help="H: a fragment is synchronised about once in this many inner steps; 0 turns the throttle off."),
    _s("max_base_lag", "rounds", U64, None, unset="any base",
       help="Refuse answers whose base is more than this many versions old."),
    _s("island_lease_s", "rounds", REAL, 0.0, unit="seconds",
       help="Close a learner (no observer) that was not heard for this long; 0 is off."),
    _s("final_ack_timeout_s", "rounds", U64, None, unit="seconds", unset="--quorum-timeout-s",
       help="How long finalization waits for every FINAL_ACK."),
    _s("fold", "rounds", named(*FOLDS), "at-close",
       help="When answers are reduced: a whole round in the order of ids, or each answer as it comes. "
       "on-arrival holds one sum (4 bytes a value) instead of all answers, and depends on their order."),
    _s("late_carry", "rounds", SWITCH, False,
       help="Let an answer that is too late for its round join the next one of its fragment; needs --fold "
       "on-arrival."),
    _s("max_carry_lag", "rounds", U32, 2, unit="rounds of the fragment",
       help="How late a carried answer may be; used with --late-carry."),
    _s("carry_decay", "rounds", REAL, 1.0,
       help="Weight factor of a carried answer for each round of lag; used with --late-carry."),
    _s("carry_answers_round", "rounds", SWITCH, False,
       help="Count a carried answer as the answer of its learner; used with --late-carry."),
    _s("quorum_capacity", "rounds", REAL, None,
       help="The quorum is this share of the members' capacity (inner steps a second), not a count."),
    _s("soft_deadline_s", "rounds", REAL, None, unit="seconds",
       help="Close a round below --quorum-capacity after this long if it holds --quorum answers."),
    _s("policy_sweep_fragments", "rounds", U32, None, available=False,
       help="Fragments of a policy sweep."),
    # merge
    _s("outer_lr", "merge", REAL, 0.7,
       help="Learning rate of the outer Nesterov step."),
    _s("outer_momentum", "merge", REAL, 0.9,
       help="Momentum of the outer Nesterov step."),
    _s("delta_correction", "merge", named(*DELTA_CORRECTIONS), "heloco",
       help="Correction of each outer gradient against the momentum."),
    _s("learner_weight", "merge", named(*LEARNER_WEIGHTS), "tokens2-over-steps",
       help="Weight of an answer: c_tokens^2 / c_steps, or 1."),
    _s("iso_backend", "merge", named(*ISO_BACKENDS), "scalar",
       help="How iso fragments are decomposed: in f64 here, or in f32 by worker processes with PyTorch. A "
       "checkpoint continues only under the backend that it was written with."),
    _s("iso_worker_python", "merge", PATH, "python3",
       help="Interpreter of the torch-svd workers, with yeto and torch; unused by scalar."),
    _s("iso_worker_device", "merge", NAME, "cuda:0",
       help="Device of a single torch-svd worker; unused by scalar."),
    _s("iso_worker_devices", "merge", listed("DEV,DEV,...", NAME), (), unset="--iso-worker-device",
       help="Devices of several torch-svd workers, one each; unused by scalar."),
    _s("iso_worker_queue_capacity", "merge", U64, 16, unit="jobs",
       help="Matrices that may be queued or running at the torch-svd workers; unused by scalar."),
    _s("merge_threads", "merge", U32, None, unset="cores, at most 32",
       help="Threads of one merge. The result never depends on it."),
    # files
    _s("checkpoint_path", "files", PATH, None,
       help="The checkpoint. <path>.tmp, <path>.lock and <path>.final stand beside it."),
    _s("checkpoint_every", "files", U64, 8, unit="steps",
       help="Steps between periodic checkpoints. 1 makes each step durable before its broadcast; 0 writes "
       "only the terminal one."),
    _s("resume", "files", SWITCH, False,
       help="Continue from --checkpoint-path, which must exist."),
    _s("resume_if_exists", "files", SWITCH, False,
       help="Continue from --checkpoint-path when it exists, else start fresh."),
    _s("mark_final_checkpoint", "files", SWITCH, False,
       help="Write <path>.final once the terminal checkpoint is there."),
    _s("checkpoint_on_start", "files", SWITCH, False,
       help="Also write a checkpoint before the first round."),
    _s("background_checkpoint", "files", SWITCH, False,
       help="Write periodic checkpoints beside the rounds. At worst it needs one more copy of the whole "
       "state (8 bytes a parameter)."),
    _s("final_state", "files", PATH, None,
       help="Where the final f32 parameters are written."),
    _s("event_tape", "files", PATH, None,
       help="Where one JSON line per merge is appended."),
    # network
    _s("host", "network", TEXT, "127.0.0.1",
       help="Address to listen on."),
    _s("port", "network", U16, 29400,
       help="Port to listen on; 0 takes a free one."),
    _s("port_file", "network", PATH, None,
       help="Where the port in use is written once it accepts."),
    _s("handshake_timeout_s", "network", REAL, 10.0, unit="seconds",
       help="A socket without a complete HELLO or DATA_HELLO is closed after this long."),
    _s("max_pending_connections", "network", U32, 256,
       help="Sockets in handshake that are read at once; more wait in the listen backlog."),
    _s("write_timeout_s", "network", REAL, 180.0, unit="seconds",
       help="A learner that takes no byte for this long is dropped."),
    # security
    _s("allow_unauthenticated", "security", SWITCH, False,
       help="Listen on an address other than loopback without a key."),
    _s("island_hmac_key_file", "security", PATH, None,
       help="File with the key that every HELLO must be sealed with; its bytes without line ends. "
       "YETO_ISLAND_HMAC_KEY may hold the key itself."),
    _s("tls_cert", "security", PATH, None,
       help="PEM file with the server's certificate chain: from now on every connection is TLS 1.3. Needs "
       "--tls-key."),
    _s("tls_key", "security", PATH, None,
       help="PEM file with the key of --tls-cert, without a password."),
    _s("tls_client_ca", "security", PATH, None,
       help="PEM file of the CA whose certificates learners must show; each must name its learner by the URI "
       "yeto:learner:ID. Needs --tls-cert."),
    _s("max_failed_handshakes", "security", U32, 100, unit="a minute",
       help="An address with more failed handshakes than this is turned away until some are forgiven, unless "
       "a learner was admitted from it; 0 is off."),
    _s("require_profile_binding", "security", SWITCH, False,
       help="Refuse a HELLO without the hash of this configuration."),
    # output
    _s("log_format", "output", choice("human", "json"), "human",
       help="Form of the log lines on standard error."),
    _s("log_level", "output", choice(*LEVELS), "info",
       help="Quietest level that is still written."),
    _s("metrics_port", "output", U16, None, unset="off",
       help="Port of the Prometheus metrics, at /metrics; 0 takes a free one. Needs yeto[metrics]."),
    _s("metrics_host", "output", TEXT, "127.0.0.1",
       help="Address of --metrics-port. Whoever reaches it can read the metrics."),
    _s("status_port", "output", U16, None, unset="off",
       help="Port of the status page, which only shows; 0 takes a free one."),
    _s("status_host", "output", TEXT, "127.0.0.1",
       help="Address of --status-port. Whoever reaches it can read the page."),
)
# fmt: on

BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}

PRESETS: Final[Mapping[str, Mapping[str, Value]]] = {
    "training": {
        "mark_final_checkpoint": True,
        "checkpoint_on_start": True,
        "background_checkpoint": True,
        "resume_if_exists": True,
    }
}
