"""The end of a learner: the f32 final cut over its parameters, the acknowledgement, and SHUTDOWN."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from .client import SyncerClient
from .core.boundary import Boundary
from .core.records import FinalFragment, FinalManifest
from .fragments import FragmentValues
from .progress import byte_progress

__all__ = ["FinalCut", "wait_for_cut"]

log = logging.getLogger(__name__)

SHUTDOWN_GRACE: Final = (
    30.0  # seconds that a syncer which left after the acknowledgement may need to come back
)


def wait_for_cut(client: SyncerClient, timeout: float | None) -> tuple[FinalManifest, list[FinalFragment]]:
    """As `SyncerClient.wait_for_final_fragments`, with no broadcast kept meanwhile.

    When that fails, what follows may be training again: broadcasts count as before.
    """
    client.discard_updates()
    try:
        return client.wait_for_final_fragments(timeout)
    except BaseException:
        client.keep_updates()
        raise


class FinalCut:
    """Runs the terminal exchange once."""

    def __init__(
        self,
        client: SyncerClient,
        boundary: Boundary,
        values: FragmentValues,
        *,
        show_progress: bool = False,
    ) -> None:
        self._show_progress = show_progress
        self._client, self._boundary, self._values = client, boundary, values

    def run(self, timeout: float) -> None:
        """Install, acknowledge, and wait for SHUTDOWN, all within `timeout` seconds.

        Raises TimeoutError, with the parameters untouched if the cut was not complete, and what
        `check_health` raises.
        """
        client = self._client
        deadline = time.monotonic() + timeout
        total = 4 * sum(self._values.numel(number) for number in range(self._values.num_fragments))  # f32
        before = client.bytes_received
        with byte_progress(self._show_progress, "final cut", total, lambda: client.bytes_received - before):
            manifest, finals = wait_for_cut(client, timeout)
        self._values.parameters.check()
        self._values.overwrite(finals)
        self._boundary.finalized(manifest)
        client.acknowledge_finalization(manifest, max(0.0, deadline - time.monotonic()))
        self._wait_for_shutdown(deadline)

    def _wait_for_shutdown(self, deadline: float) -> None:
        client = self._client
        lost_since: float | None = None
        while not client.shutdown.is_set():
            now = time.monotonic()
            connected = client.connected
            lost_since = None if connected else (lost_since or now)
            if lost_since is not None and now >= lost_since + SHUTDOWN_GRACE:
                log.warning("the syncer left before SHUTDOWN; the final cut is installed and acknowledged")
                return
            if now >= deadline:
                raise TimeoutError(
                    "the final cut is installed and acknowledged, but no SHUTDOWN came; "
                    "another learner may be missing"
                )
            until = deadline if lost_since is None else min(deadline, lost_since + SHUTDOWN_GRACE)
            client.wait_for(self._shutdown_or(not connected), until - now)

    def _shutdown_or(self, connected: bool) -> Callable[[], bool]:
        return lambda: self._client.shutdown.is_set() or self._client.connected == connected
