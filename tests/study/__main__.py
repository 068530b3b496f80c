"""`make study`: play the grid, write its figures, the plot and the page of the documentation."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.study.grid import study
from tests.study.page import page
from tests.study.plot import plot
from tests.study.setting import SEED

DOCS = Path(__file__).resolve().parents[2] / "site" / "docs"
FIGURES = DOCS / "assets" / "goodput.json"
PLOT = DOCS / "assets" / "goodput.svg"
PAGE = DOCS / "goodput.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make study", description=__doc__)
    parser.add_argument("--workers", type=int, help="processes (default: one for each core)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of all failures (default: {SEED})")
    parser.add_argument("--render", action="store_true", help="only draw plot and page, from the figures")
    options = parser.parse_args()
    began = time.monotonic()
    if not options.render:
        found = study(options.seed, told, options.workers)
        FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    PLOT.write_text(plot(figures), encoding="utf-8")
    PAGE.write_text(page(figures), encoding="utf-8")
    written = ", ".join(str(path.relative_to(DOCS.parents[1])) for path in (FIGURES, PLOT, PAGE))
    print(f"wrote {written} in {time.monotonic() - began:.0f} s")
    return 0


def told(done: int, of: int) -> None:
    """Say how far it is, now and then."""
    end = "\r" if sys.stderr.isatty() and done < of else "\n"
    if sys.stderr.isatty() or done % 40 == 0 or done == of:
        print(f"{done} of {of} runs", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
