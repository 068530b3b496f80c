"""`yeto-syncer`, also as `python -m yeto_syncer`."""

from __future__ import annotations

import sys

from yeto_proto.console.early import leave_at_once, open_streams


def main() -> int:
    """The exit code. The command itself is loaded when a signal can no longer show up as a traceback."""
    open_streams()
    leave_at_once(quietly=True)  # before training a signal is a graceful stop (D22)
    from yeto_syncer import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
