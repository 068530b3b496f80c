"""What became of a case: one verdict for the protocol, one for how connections ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from .trace import Trace

__all__ = ["UNSUPPORTED", "BrokenError", "FailError", "Result", "SkipError", "Verdict"]


class Verdict(Enum):
    """In the order in which they matter."""

    BROKEN = "broken"  # the runner failed, which is never the fault of the side under test
    FAIL = "fail"
    LOOSE = "loose"  # a SHOULD was missed, or another refusal than the expected one was given
    SKIP = "skip"
    INFO = "info"
    PASS = "pass"

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


class FailError(Exception):
    """The side under test broke a rule."""


class SkipError(Exception):
    """The side under test does not offer what the case needs."""


class BrokenError(Exception):
    """The runner could not do its part."""


#: A command ends with this code for a case that it does not support.
UNSUPPORTED: Final = 127


@dataclass
class Result:
    """The outcome of one case in one role."""

    trace: Trace
    verdict: Verdict = Verdict.PASS
    closing: Verdict = Verdict.PASS
    reason: str = ""
    step: int | None = None  # the step that it ended at, from 0
    expected: Any = None
    actual: Any = None
    seconds: float = 0.0
    cut: str = "recorded"
    log: list[str] = field(default_factory=list)
    known: str | None = None  # why it is a known failure
    known_seen: bool = False  # another cut of the same known failure fails
    sut: str = ""  # what the implementation is called

    @property
    def worst(self) -> Verdict:
        """The worse of the two."""
        return min(self.verdict, self.closing, key=lambda each: each.rank)

    @property
    def counts_as(self) -> str:
        """passed, failed or skipped, as the last line of a report counts."""
        if self.known is not None:
            passes = self.worst in (Verdict.PASS, Verdict.LOOSE) and not self.known_seen
            return "failed" if passes else "skipped"
        if self.worst in (Verdict.FAIL, Verdict.BROKEN):
            return "failed"
        return "skipped" if self.worst in (Verdict.SKIP, Verdict.INFO) else "passed"
