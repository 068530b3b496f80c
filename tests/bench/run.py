"""Run every benchmark of this folder, print one table and write build/bench.json.

Each `bench_*.py` has `rows()`, which gives dicts with `work`, `value`, `unit`, `raw` (the raw limit, measured
a moment before in the same process), `ratio` and `target` (or None). Nothing here passes or fails by the
clock.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))  # the children of a benchmark import it by its whole name


def load(path: Path) -> Any:
    return importlib.import_module(f"tests.bench.{path.stem}")


def number(value: Any) -> str:
    return "" if value is None else f"{value:,.3g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="which benchmarks, such as `wire` or `data`; all by default")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"), help="where the figures go")
    arguments = parser.parse_args()
    paths = {path.stem.removeprefix("bench_"): path for path in sorted(FOLDER.glob("bench_*.py"))}
    unknown = [name for name in arguments.names if name not in paths]
    if unknown:
        print(
            f"error: no benchmark named {', '.join(unknown)}; choose from {', '.join(paths)}", file=sys.stderr
        )
        return 2

    console = Console()
    table = Table("work", "value", "unit", "raw", "ratio", "target", title="yeto benchmarks")
    rows: list[dict[str, Any]] = []
    for name in arguments.names or paths:
        started = time.perf_counter()
        found = load(paths[name]).rows()
        console.print(f"{name}: {len(found)} rows in {time.perf_counter() - started:.1f} s")
        rows += [{"bench": name, **row} for row in found]
    for row in rows:
        table.add_row(*(number(row.get(key)) for key in ("work", "value", "unit", "raw", "ratio", "target")))
    console.print(table)

    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    console.print(f"wrote {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
