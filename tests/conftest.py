"""What every test shares: Hypothesis profiles, and one place to import the suite's own helpers from.

`YETO_HYPOTHESIS_PROFILE=deep`, set at the end of `make test-full`, gives many examples. These are the same in
every run, so that a run tells of the change and not of its luck; `make fuzz` (`fuzz`) looks for new ones.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Several tests run at a time, and each process that they start would spread its products over all cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Helpers such as tests/e2e/processes.py are plain modules; tests import them as `tests.e2e.processes`.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SLOW_DATA = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
PROFILES = {"default": (50, True), "deep": (400, True), "fuzz": (400, False)}
for name, (examples, same) in PROFILES.items():
    settings.register_profile(
        name, max_examples=examples, derandomize=same, deadline=None, suppress_health_check=SLOW_DATA
    )
settings.load_profile(os.environ.get("YETO_HYPOTHESIS_PROFILE", "default"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how often everything has happened in the simulated worlds, if they were played."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, text in getattr(report, "user_properties", ()):
                if name == "simulation":
                    terminalreporter.section("what happened in the simulated worlds")
                    terminalreporter.write_line(text)
