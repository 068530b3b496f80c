"""Where `yeto-syncer` (also `python -m yeto_syncer`), `yeto-tape` and `yeto-checkpoint` start."""

from __future__ import annotations

import sys

from yeto_proto.console.early import start


def main() -> int:
    """`yeto-syncer`; the exit code. Before training a signal is a graceful stop (D22)."""
    return start("yeto_syncer.cli", quietly=True)


def tape() -> int:
    """`yeto-tape`; the exit code."""
    return start("yeto_syncer.tape_cli")


def checkpoint() -> int:
    """`yeto-checkpoint`; the exit code."""
    return start("yeto_syncer.checkpoint.cli")


if __name__ == "__main__":
    sys.exit(main())
