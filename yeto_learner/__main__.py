"""Where `yeto-learner` starts, also as `python -m yeto_learner`."""

from __future__ import annotations

import sys

from yeto_proto.console.early import start


def main() -> int:
    """The exit code."""
    return start("yeto_learner.cli")


if __name__ == "__main__":
    sys.exit(main())
