"""INIT for a syncer that has lost its parameters, or never had a checkpoint of them, while learners trained.

Learner 0 sends its anchors: the newest global values that it knows, and the same bits that the syncer had
sent; of a fragment that no broadcast has come of, its own values, as at the start. With its local values in
place of the anchors, its own progress would be merged twice. The syncer begins at step 0 again, and every
learner moves its progress onto what it gets (revision 2, 7.3).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from .client import SyncerClient
from .core.boundary import Boundary
from .core.silence import Silence
from .core.values import F32
from .errors import NonFiniteParameterError
from .exporter import DeltaBuffers, Exporter
from .fragments import FragmentValues

__all__ = ["SECOND_INIT_S", "SecondInit"]

log = logging.getLogger(__name__)

SECOND_INIT_S: Final = 60.0
"""Seconds of silence that are waited for at the most: twice the longest wait of a learner that dials again,
whom a syncer with parameters may be waiting for."""


class SecondInit:
    """Looks at the connection at every step boundary, and never waits for it.

    `patience`: seconds of silence on a redialled connection before the anchors are sent.  `rewinds`: whether
    version 0 would be taken again; if not, only a syncer that never had parameters is sent any.
    """

    def __init__(
        self,
        client: SyncerClient,
        boundary: Boundary,
        values: FragmentValues,
        buffers: DeltaBuffers,
        exporter: Exporter,
        patience: float,
        *,
        rewinds: bool = True,
    ) -> None:
        self._client, self._boundary, self._values = client, boundary, values
        self._buffers, self._exporter = buffers, exporter
        self._rewinds = rewinds
        self._silence = Silence(min(patience, SECOND_INIT_S))
        self._sent_epoch: int | None = None
        self._next = 0  # the fragment whose anchor goes out next

    def look(self) -> None:
        """At a step boundary, when broadcasts and pulls were taken.

        Raises NonFiniteParameterError for a value without an anchor that cannot be sent.
        """
        client = self._client
        epoch, count = client.connection_epoch, self._values.num_fragments
        silent = (
            client.connected
            and len(client.catching_up) == count
            and not self._boundary.pending
            and (self._rewinds or len(self._boundary.missing) == count)
        )
        received = client.bytes_received if silent else 0
        if not self._silence.lasts(time.monotonic(), epoch, silent=silent, received=received):
            return
        if epoch != self._sent_epoch:
            self._sent_epoch, self._next = epoch, 0
            log.warning(
                "nothing has come from the syncer since it is back: in case it has no parameters, it is sent "
                "those of the last broadcast, or the first ones, and would begin at step 0 with them"
            )
        while self._next < count:
            buffer = self._buffers.take(self._values.numel(self._next))
            if buffer is None:
                return  # the sender is behind: the rest follows at later boundaries
            self._read(self._next, buffer)
            self._exporter.submit_init(self._next, buffer)
            self._next += 1

    def _read(self, fragment_id: int, buffer: F32) -> None:
        if fragment_id not in self._boundary.missing:
            self._values.read_anchor(fragment_id, buffer)
            return
        try:
            self._values.read_initial(fragment_id, buffer)
        except NonFiniteParameterError:
            self._buffers.give(buffer)
            raise
