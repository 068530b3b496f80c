"""One process for each learner id: a lock that finds two of them on one machine at once.

The protocol cannot tell a second process with a learner's id from that learner coming back: the newer
connection takes over, and the older process would train on and never hear of the run again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import IO, Final

from .channel import Address, address_text
from .errors import LearnerIdInUseError

__all__ = ["IdentityLock"]

PATIENCE: Final = 0.5  # seconds that an earlier process of this learner may still take to end
PAUSE: Final = 0.05  # seconds


class IdentityLock:
    """Held from `take` to `release`, or to the end of the process, however that comes.

    It belongs to the process alone: workers that it forked and that outlive it do not keep it.
    """

    _held: Final[set[str]] = set()  # by this process, which the system would give the same lock again

    def __init__(self, address: Address, learner_id: int, contract: bytes) -> None:
        self._address, self._learner_id = address, learner_id
        key = f"{address[0]}\0{address[1]}\0{learner_id}\0".encode() + contract
        self._key = hashlib.sha256(key).hexdigest()[:32]
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Raises LearnerIdInUseError.  Where no lock can be kept (no folder for it), this does nothing."""
        deadline = time.monotonic() + PATIENCE
        while True:
            holder = self._try()
            if holder is None:
                return
            if time.monotonic() >= deadline:
                raise LearnerIdInUseError(
                    f"learner {self._learner_id} of the run at {address_text(self._address)} runs already on "
                    f"this machine, in process {holder}; give each process a learner_id of its own (0 to "
                    f"M-1), or end that one first"
                )
            time.sleep(PAUSE)

    def _try(self) -> str | None:
        """None when the lock is held now, or cannot be kept here; else who holds it."""
        if self._key in self._held:
            return f"{os.getpid()} (this one: close() the other Learner)"
        path = Path(tempfile.gettempdir()) / f"yeto-learner-{self._key}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        file = os.fdopen(descriptor, "r+", encoding="ascii", errors="replace")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = file.read(20).strip()
            file.close()
            return holder or "unknown"
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        self._held.add(self._key)
        return None

    def release(self) -> None:
        """Let the id go.  May be called again."""
        if self._file is None:
            return
        # The file is kept: an unlinked one could be locked by one process while another makes it anew.
        self._file.close()
        self._file = None
        self._held.discard(self._key)
