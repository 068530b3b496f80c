"""Runs a module as a program that ends when its parent does.

    python -P tether.py MODULE ARGUMENTS...

The parent holds the other end of this process's standard input and never writes to it. When the parent is
gone, however it went (SIGKILL included), the kernel closes that end, the read below returns, and the process
ends: no orphan. The file is run by its path and imports nothing of the package, so that the module starts as
if by `-m`.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> None:
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    threading.Thread(target=_end_with_parent, name="tether", daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
