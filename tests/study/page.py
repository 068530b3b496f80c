"""The page of the documentation: the figures put into the text of goodput.md beside this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.study.grid import at
from tests.study.setting import (
    AT_CHIPS,
    AT_LEARNERS,
    AT_RESTART_S,
    AT_YEARS,
    CHECKPOINT_S,
    CHIP_YEARS,
    CHIPS,
    LEARNERS,
    PUBLISHED,
    QUORUM_TIMEOUT_S,
    RESTARTS_S,
    STEP_S,
    SYNC_STEPS,
    assumptions,
)

TEXT: Final = Path(__file__).with_name("goodput.md")
PUBLISHED_SHARE: Final = 0.88
HEADS: Final = ["synchronous", *(f"M = {learners}" for learners in LEARNERS)]


def page(study: dict[str, Any]) -> str:
    """The whole page in Markdown."""
    return TEXT.read_text(encoding="utf-8").format_map(fields(study))


def fields(study: dict[str, Any]) -> dict[str, str]:
    """What stands in the places of the text."""
    point = at(study, AT_CHIPS, AT_YEARS, AT_RESTART_S)
    rare = at(study, CHIPS[0], AT_YEARS, AT_RESTART_S)
    worst = at(study, CHIPS[-1], CHIP_YEARS[0], AT_RESTART_S)
    eight, most, alone = (_run(point, number) for number in (AT_LEARNERS, LEARNERS[-1], 1))
    first, last = study["quorums"][0], study["quorums"][-1]
    needed = AT_RESTART_S / point["job_mean_s"] / (1.0 / PUBLISHED_SHARE - 1.0)
    noise = [abs(run["steps"] - run["availability"]) for row in study["grid"] for run in _runs(row)]
    base = study["failure_free_merged"].values()
    return {
        "at_chips": f"{AT_CHIPS:,}",
        "at_years": f"{AT_YEARS:g}",
        "at_restart": seconds(AT_RESTART_S),
        "at_learners": str(AT_LEARNERS),
        "most_learners": str(LEARNERS[-1]),
        "quorum_timeout": str(QUORUM_TIMEOUT_S),
        "sync_steps": f"{SYNC_STEPS:g}",
        "turn": seconds(SYNC_STEPS * STEP_S),
        "checkpoint": seconds(CHECKPOINT_S),
        "job": percent(point["synchronous"]),
        "job_kept": percent(point["synchronous_kept"]),
        "eight": percent(eight["steps"]),
        "eight_kept": percent(eight["kept"]),
        "most": percent(most["steps"]),
        "alone": percent(alone["steps"]),
        "needed_learners": f"{needed:.0f}",
        "needed_restart": seconds(AT_RESTART_S * AT_LEARNERS / needed),
        "rare_chips": f"{CHIPS[0]:,}",
        "rare_loss": percent(1.0 - rare["synchronous"]),
        "worst_chips": f"{CHIPS[-1]:,}",
        "worst_mean": f"{worst['job_mean_s']:.1f} s",
        "worst_alone": percent(_run(worst, 1)["steps"]),
        "worst_alone_kept": percent(_run(worst, 1)["kept"]),
        "worst_most": percent(_run(worst, LEARNERS[-1])["steps"]),
        "worst_most_kept": percent(_run(worst, LEARNERS[-1])["kept"]),
        "last_quorum": str(last["quorum"]),
        "first_kept": percent(first["kept"]),
        "last_kept": percent(last["kept"]),
        "seed": str(study["seed"]),
        "noise_mean": percent(sum(noise) / len(noise)),
        "noise_most": percent(max(noise)),
        "base_least": percent(min(base)),
        "base_most": percent(max(base)),
        "assumptions": "\n".join(f"- {each}" for each in assumptions()),
        "published": table(["figure", "Decoupled DiLoCo", "beside"], PUBLISHED),
        **_tables(study),
    }


def _tables(study: dict[str, Any]) -> dict[str, str]:
    by_size = [at(study, chips, AT_YEARS, AT_RESTART_S) for chips in CHIPS]
    by_restart = [at(study, AT_CHIPS, AT_YEARS, restart) for restart in RESTARTS_S]
    return {
        "sizes": table(
            ["chips", "a failure every", *HEADS],
            [[f"{row['chips']:,}", seconds(row["job_mean_s"]), *_cells(row)] for row in by_size],
        ),
        "restarts": table(
            ["restart", *HEADS], [[seconds(row["restart_s"]), *_cells(row)] for row in by_restart]
        ),
        "quorums": table(
            ["quorum", "completed steps", "kept work", "answers in a merge"],
            [
                [str(each["quorum"]), percent(each["steps"]), percent(each["kept"]), f"{each['answers']:.1f}"]
                for each in study["quorums"]
            ],
        ),
        "grid": table(
            ["chips", "mean life of a chip", "restart", *HEADS],
            [
                [
                    *(f"{row['chips']:,}", f"{row['chip_years']:g} years", seconds(row["restart_s"])),
                    *_cells(row),
                ]
                for row in study["grid"]
            ],
        ),
    }


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{share * 100:.1f} %"


def seconds(time: float) -> str:
    """A time span in whole seconds."""
    return f"{time:,.0f} s"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns but the first are aligned to the right."""
    rule = "|---|" + "---:|" * (len(heads) - 1)
    return "\n".join([_line(heads), rule, *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _run(row: dict[str, Any], learners: int) -> dict[str, Any]:
    found: dict[str, Any] = row["decoupled"][str(learners)]
    return found


def _runs(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [_run(row, learners) for learners in LEARNERS]


def _cells(row: dict[str, Any]) -> list[str]:
    """Completed steps and kept work of the synchronous job, then of the learners."""
    pairs = [
        (row["synchronous"], row["synchronous_kept"]),
        *((run["steps"], run["kept"]) for run in _runs(row)),
    ]
    return [f"{steps * 100:.1f} / {kept * 100:.1f}" for steps, kept in pairs]
