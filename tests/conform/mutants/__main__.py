"""Run a mutant: `python -m tests.conform.mutants NAME ARGUMENTS...`."""

from __future__ import annotations

import sys

from tests.conform.mutants import bounds, codec, learner, order, syncer


def main() -> int:
    """The exit code of the command that the mutant is."""
    name, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    for kind in (codec, syncer, order, bounds, learner):
        if name in kind.MUTANTS:
            kind.MUTANTS[name]()
            return kind.run()
    print(f"error: there is no mutant {name}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
