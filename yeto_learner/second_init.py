"""INIT for a syncer that has lost its parameters, or never had a checkpoint of them, while learners trained.

Learner 0 sends its anchors: the newest global values that it knows, and the same bits that the syncer had
sent. With its local values in their place, its own progress would be merged twice. The syncer begins at step
0 again, and every learner moves its progress onto what it gets (revision 2, 7.3).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from .client import SyncerClient
from .core.boundary import Boundary
from .core.silence import Silence
from .exporter import DeltaBuffers, Exporter
from .fragments import FragmentValues

__all__ = ["SECOND_INIT_S", "SecondInit"]

log = logging.getLogger(__name__)

SECOND_INIT_S: Final = 60.0
"""Seconds of silence that are waited for at the most: twice the longest wait of a learner that dials again,
whom a syncer with parameters may be waiting for."""


class SecondInit:
    """Looks at the connection at every step boundary, and never waits for it.

    `patience`: seconds of silence on a redialled connection before the anchors are sent.
    """

    def __init__(
        self,
        client: SyncerClient,
        boundary: Boundary,
        values: FragmentValues,
        buffers: DeltaBuffers,
        exporter: Exporter,
        patience: float,
    ) -> None:
        self._client, self._boundary, self._values = client, boundary, values
        self._buffers, self._exporter = buffers, exporter
        self._silence = Silence(min(patience, SECOND_INIT_S))
        self._sent_epoch: int | None = None
        self._next = 0  # the fragment whose anchor goes out next

    def look(self) -> None:
        """At a step boundary, when broadcasts and pulls were taken."""
        client = self._client
        epoch, count = client.connection_epoch, self._values.num_fragments
        silent = (
            client.connected
            and len(client.catching_up) == count
            and not self._boundary.pending
            and not self._boundary.missing
        )
        if not self._silence.lasts(time.monotonic(), epoch, silent=silent):
            return
        if epoch != self._sent_epoch:
            self._sent_epoch, self._next = epoch, 0
            log.warning(
                "nothing has come from the syncer since it is back: in case it has no parameters, it is sent "
                "those of the last broadcast, and would begin at step 0 with them"
            )
        while self._next < count:
            buffer = self._buffers.take(self._values.numel(self._next))
            if buffer is None:
                return  # the sender is behind: the rest follows at later boundaries
            self._values.read_anchor(self._next, buffer)
            self._exporter.submit_init(self._next, buffer)
            self._next += 1
