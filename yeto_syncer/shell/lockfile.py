"""The lock file `<path>.lock`, which keeps two syncers from writing one checkpoint."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

_LONGEST_PID: Final = 20


class LockHeldError(BlockingIOError):
    """Another process holds the lock; `strerror` names the file and, where it is known, the process."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(errno.EWOULDBLOCK, f"{holder} holds the lock {path}")
        self.path = path
        self.pid = pid


class LockFile:
    """An advisory lock on a checkpoint path, held from `acquire` to `release` or for a `with` block.

    The kernel drops it when the process ends, however it ends.  The file stays: removing it would let two
    processes lock two files of one name.

    Raises LockHeldError when another process (or another LockFile) holds it, OSError for a bad path.
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self.path = Path(f"{os.fspath(checkpoint)}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise at once; it is never waited for."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockHeldError(self.path, _holder(descriptor)) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; without effect when it is not held."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)

    def __enter__(self) -> LockFile:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _holder(descriptor: int) -> int | None:
    """The process number in the file; None while its holder is just writing or clearing it."""
    text = os.pread(descriptor, _LONGEST_PID, 0).strip()
    return int(text) if text.isdigit() else None
