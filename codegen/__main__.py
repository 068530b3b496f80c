"""`python -m codegen`: write what follows from the specification, or check that it was written."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from pathlib import Path

from codegen.conform.trace import stale
from codegen.coverage import Coverage, cover, table
from codegen.faults import SpecFault
from codegen.parts import load, outputs
from codegen.render import Output

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or 1 for a fault in the specification or a file that is not up to date."""
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    try:
        spec = load(options.spec)
        if options.coverage:
            print(table(cover(spec, options.out / "tests")))
            return 0
        files = outputs(spec)
        if options.check:
            return max(_check(files, options.out), _check_coverage(cover(spec, options.out / "tests")))
    except SpecFault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    changed = [each for each in files if _write(each, options.out)]
    for path in stale(files, options.out):
        path.unlink()
        print(f"removed {path.relative_to(options.out)}, whose case is gone")
    for each in changed:
        print(f"wrote {each.path} ({len(each.text.encode()):,} bytes)")
    print(f"{len(changed)} of {len(files)} files changed, in {time.monotonic() - started:.1f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m codegen",
        description="Generate yeto_proto/_generated and the test strategies from spec/.",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; show a diff and exit 1 if a file is not up to date",
    )
    parser.add_argument(
        "--coverage", action="store_true", help="print each rule with its cases and tests, and write nothing"
    )
    parser.add_argument(
        "--spec", type=Path, default=ROOT / "spec", help="the specification (default: spec/ of this project)"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT, help="the folder to write into (default: this project)"
    )
    return parser


def _write(each: Output, root: Path) -> bool:
    path = root / each.path
    if path.exists() and path.read_text(encoding="utf-8") == each.text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(each.text, encoding="utf-8")
    return True


def _check(files: list[Output], root: Path) -> int:
    old = 0
    for path in stale(files, root):
        old += 1
        print(f"{path.relative_to(root)}: no case of spec/cases gives this file")
    for each in files:
        path = root / each.path
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if found != each.text:
            old += 1
            sys.stdout.writelines(
                difflib.unified_diff(
                    found.splitlines(keepends=True),
                    each.text.splitlines(keepends=True),
                    f"{each.path} (as it is)",
                    f"{each.path} (as spec/ says)",
                )
            )
    if old:
        print(
            f"error: {old} of {len(files)} generated files are not up to date; run `make gen`",
            file=sys.stderr,
        )
        return 1
    print(f"{len(files)} generated files are up to date")
    return 0


def _check_coverage(coverage: Coverage) -> int:
    faults = coverage.faults()
    for each in faults:
        print(f"error: {each}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
