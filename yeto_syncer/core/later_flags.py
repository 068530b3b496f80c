"""The flags behind the fixed recipe of the semantic profile (D40): what is hashed of them, and what fits."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from yeto_syncer.core.config import Config

LONGEST: Final = 255  # a value stands behind its length in one byte


def later_flags(config: Config) -> list[tuple[str, str]]:
    """Name and value of each later flag that is on, in no particular order."""
    flags: list[tuple[str, str]] = []
    if config.background_checkpoint:
        flags.append(("background-checkpoint", "1"))
    if config.carry_answers_round:
        flags.append(("carry-answers-round", "1"))
    if config.late_carry:
        # Its two numbers are in force with it, given or not.
        flags.append(("late-carry", "1"))
        flags.append(("carry-decay", _decimal(config.carry_decay)))
        flags.append(("max-carry-lag", str(config.max_carry_lag)))
    if config.fold == "on-arrival":
        flags.append(("fold", "1"))
    if config.quorum_capacity is not None:
        flags.append(("quorum-capacity", _decimal(config.quorum_capacity)))
    if config.soft_deadline_s is not None:
        flags.append(("soft-deadline-s", _decimal(config.soft_deadline_s)))
    if config.checkpoint_on_start:
        flags.append(("checkpoint-on-start", "1"))
    if config.min_start_learners is not None:
        flags.append(("min-start-learners", str(config.min_start_learners)))
    if config.observers:
        flags.append(("observers", ",".join(str(learner) for learner in sorted(config.observers))))
    return flags


def _decimal(value: float) -> str:
    """The shortest decimal that gives this f64 again, without exponent and without zeros at the end."""
    text = format(Decimal(repr(float(value))), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
