"""`python -m yeto_syncer` is the same as `yeto-syncer`."""

from __future__ import annotations

import sys

from yeto_syncer.cli import main

if __name__ == "__main__":
    sys.exit(main())
