"""The pages on security and metrics say what the program and the tests say."""

from __future__ import annotations

import re
from pathlib import Path

from yeto_syncer.shell.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "site" / "docs"


def test_every_metric_stands_on_the_page_with_its_help_and_labels() -> None:
    rows = {
        (name, kind, labels.replace("`", ""), text)
        for name, kind, labels, text in re.findall(
            r"^\| `(\w+)` \| (\w+) \| ([^|]*?) ?\| (.+) \|$", (DOCS / "metrics.md").read_text(), re.MULTILINE
        )
    }
    told = {
        (f"{PREFIX}{name}_total", "counter", ", ".join(labels), text)
        for name, text, labels in COUNTERS.values()
    }
    told |= {(PREFIX + name, "gauge", ", ".join(labels), text) for name, (text, labels) in GAUGES.items()}
    told |= {
        (PREFIX + name, "histogram", ", ".join(labels), text)
        for name, (text, labels, _) in HISTOGRAMS.items()
    }
    assert rows == told


def test_every_alert_stands_on_the_page() -> None:
    told = re.findall(r"^\| `(Yeto\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    rules = re.findall(r"^ +- alert: (\w+)$", (DOCS / "deploy" / "alerts.yaml").read_text(), re.MULTILINE)
    assert rules and told == rules


def test_every_test_of_the_table_of_attacks_exists() -> None:
    rows = re.findall(r"`(test_\w+\.py)::(test_\w+)` \|$", (DOCS / "security.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    for file, name in rows:
        found = list((ROOT / "tests").rglob(file))
        assert any(re.search(rf"def {name}\(", path.read_text()) for path in found), f"{file}::{name}"
