"""The beginning of a learner: initial values sent by learner 0, and the wait for the first broadcast of
everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from .client import SyncerClient
from .core.boundary import Boundary
from .errors import PartialMessageGenerationLost
from .fragments import FragmentValues
from .progress import byte_progress

__all__ = ["InitialCut"]

log = logging.getLogger(__name__)

WAIT_NOTICE: Final = 5.0  # seconds of waiting after which the log says what is waited for


class InitialCut:
    """Brings a learner to the point where every fragment has an anchor.

    timeout: seconds for the whole cut, 0 for no wait.  probe: seconds that a resumed learner 0 waits for the
    syncer's state before it sends its own values; None for a learner that sends them first, as at a cold
    start.
    """

    def __init__(
        self,
        client: SyncerClient,
        boundary: Boundary,
        values: FragmentValues,
        install_next: Callable[[], bool],
        *,
        timeout: float,
        probe: float | None,
        show_progress: bool = False,
    ) -> None:
        self._show_progress = show_progress
        self._client, self._boundary, self._values = client, boundary, values
        self._install_next = install_next
        self._timeout, self._probe = timeout, probe
        self._sent_epoch: int | None = None  # the connection that the initial values went out on
        self._served_epoch: int | None = None  # the last one that brought a broadcast

    def run(self) -> None:
        """Raises TimeoutError when the cut is not complete in time, and what `check_health` raises."""
        client = self._client
        wanted = sum(client.session.bulk_bytes(number) for number in range(self._values.num_fragments))
        before = client.bytes_sent + client.bytes_received
        both_ways = client.learner_id == 0 and self._probe is None
        with byte_progress(
            self._show_progress,
            "initial cut",
            2 * wanted if both_ways else wanted,
            lambda: client.bytes_sent + client.bytes_received - before,
        ):
            self._run()

    def _run(self) -> None:
        client = self._client
        begun = time.monotonic()
        deadline = begun + self._timeout
        send_at = begun if self._probe is None else min(begun + self._probe, deadline)
        told = False
        if self._timeout == 0:
            self._send_values(None)
            return
        while self._boundary.missing and not client.finalizing.is_set():
            client.check_health()
            if self._install_next():
                self._served_epoch = client.connection_epoch
                continue
            now = time.monotonic()
            may_send = client.learner_id == 0 and now >= send_at
            if may_send and self._due():
                if self._sent_epoch is None and self._probe is not None:
                    deadline = now + self._timeout  # the wait for the syncer's state is not counted
                self._send_values(deadline)
                continue
            if now >= deadline:
                raise TimeoutError(
                    f"no initial cut within {self._timeout:g} s: no fragments {self._boundary.missing}; do "
                    f"all learners of the launch run, and is learner 0 among them?"
                )
            until = deadline if now >= send_at else min(deadline, send_at)
            if not told and now >= begun + WAIT_NOTICE:
                told = True
                log.info(
                    "waiting for the first broadcasts: the syncer begins when enough learners are there, "
                    "learner 0 among them"
                )
            elif not told:
                until = min(until, begun + WAIT_NOTICE)
            client.wait_for(self._news_or_due if may_send else self._news, until - now)
        while self._install_next():  # also says that the last one is done with: reading may go on
            pass

    def _news(self) -> bool:
        return self._client.has_updates or self._client.finalizing.is_set()

    def _news_or_due(self) -> bool:
        return self._news() or self._due()

    def _due(self) -> bool:
        # On a new connection the values go out again: the old one may have lost them, and a syncer that has
        # them ignores the second copy.  One that has sent a broadcast on this connection has them.
        epoch = self._client.connection_epoch
        return self._client.connected and epoch not in (self._sent_epoch, self._served_epoch)

    def _send_values(self, deadline: float | None) -> None:
        client = self._client
        if client.learner_id != 0:
            return
        self._sent_epoch = client.connection_epoch
        log.info("sending the initial values of %d fragments", self._values.num_fragments)
        for number in range(self._values.num_fragments):
            if client.has_updates:
                return  # the syncer is initialized already
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                if not client.send_init_parts(number, self._values.init_parts(number), timeout=timeout):
                    return
            except PartialMessageGenerationLost:
                return
