"""The last exchange of a client: the final cut, its acknowledgement, and the budget report of benchmarks."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from yeto_proto._generated.errors import WrongState
from yeto_proto._generated.messages import BudgetDone, FinalAck, Message
from yeto_proto.writer import frame

from .connection import Connection
from .core.records import FinalFragment, FinalManifest
from .group import Group
from .outbox import Ticket

if TYPE_CHECKING:
    from .client import SyncerClient

__all__ = ["Terminal"]


class Terminal:
    """Waits and acknowledgements over whatever generation is connected."""

    def __init__(self, client: SyncerClient, connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self._link = connection.link
        self._acked_epoch: int | None = None  # the epoch whose manifest was acknowledged last

    def wait_for_final_fragments(self, timeout: float | None) -> tuple[FinalManifest, list[FinalFragment]]:
        """See `SyncerClient.wait_for_final_fragments`."""
        timeout = self._limit(timeout)
        link, changed = self._link, self._connection.changed
        with changed:
            # Broadcasts that nobody drains any more must not hold up the final cut behind them.
            self._connection.unlimited = True
            changed.notify_all()
        complete = self._client.wait_for(
            lambda: link.manifest is not None and not link.missing_finals(), timeout
        )
        with changed:
            if complete:
                assert link.manifest is not None
                return link.manifest, [link.finals[number] for number in range(len(link.manifest.versions))]
            self._connection.unlimited = False
            if link.manifest is None:
                raise TimeoutError(f"no FINAL_MANIFEST arrived within {timeout:g} s")
            missing = ", ".join(
                f"fragment {number}: version {wanted} wanted, {'none' if have is None else have} held"
                for number, wanted, have in link.missing_finals()
            )
            raise TimeoutError(f"the final cut is incomplete after {timeout:g} s: {missing}")

    def keep_updates(self) -> None:
        """See `SyncerClient.keep_updates`."""
        with self._connection.changed:
            lost, group = self._link.keep_updates(), self._connection.group
        if lost and group is not None:
            self._connection.renew(group, "broadcasts were dropped while the final cut was waited for")

    def acknowledge(self, manifest: FinalManifest, timeout: float | None) -> None:
        """See `SyncerClient.acknowledge_finalization`."""
        timeout = self._limit(timeout)
        deadline = time.monotonic() + timeout
        client, link = self._client, self._link
        while not client.finalized.is_set():
            left = max(0.0, deadline - time.monotonic())
            if not client.wait_for(lambda: client.connected or link.shutdown, left):
                raise TimeoutError(f"no connection to acknowledge the final cut on within {timeout:g} s")
            with self._connection.changed:
                try:
                    link.start_ack(manifest)
                except WrongState as error:
                    raise RuntimeError(str(error)) from error
                group = self._connection.group
                self._acked_epoch = link.manifest_epoch
            if link.shutdown:
                break
            if group is not None and self._write(
                group, FinalAck(final_global_step=manifest.global_step), deadline
            ):
                break
        client.finalized.set()

    def repeat_ack(self) -> None:
        """Acknowledge again when the cut came again: what was written to the earlier connection did not
        arrive.

        Called with the lock held.
        """
        link, group = self._link, self._connection.group
        if not link.ack_started or link.manifest_epoch == self._acked_epoch or group is None:
            return
        assert link.manifest is not None
        self._acked_epoch = link.manifest_epoch
        group.outboxes[0].offer(frame(FinalAck(final_global_step=link.manifest.global_step)))

    def send_budget_done(self, local_steps: int, timeout: float | None) -> int:
        """See `SyncerClient.send_budget_done`."""
        epoch = self.try_budget_done(local_steps, timeout)
        if epoch is None:
            raise RuntimeError("BUDGET_DONE needs a connection: there is none, or it was lost meanwhile")
        return epoch

    def try_budget_done(self, local_steps: int, timeout: float | None) -> int | None:
        """See `SyncerClient.try_budget_done`."""
        deadline = time.monotonic() + self._limit(timeout)
        with self._connection.changed:
            group = self._connection.group
            if group is None:
                return None
            self._link.forget_at_disconnect()
        return group.epoch if self._write(group, BudgetDone(local_steps), deadline) else None

    def wait_for_budget_restart(self, epoch: int, timeout: float | None) -> None:
        """See `SyncerClient.wait_for_budget_restart`."""
        timeout = self._limit(timeout)
        if not self._client.wait_for(lambda: self._client.connected and self._link.epoch > epoch, timeout):
            raise TimeoutError(f"the syncer did not come back within {timeout:g} s after the budget report")

    def _limit(self, timeout: float | None) -> float:
        return self._client.finalization_timeout if timeout is None else timeout

    def _write(self, group: Group, message: Message, deadline: float) -> bool:
        """Whether a control frame was handed to the kernel; waits for that or for the loss of the group."""
        settled = threading.Event()
        fate: list[bool] = []

        def note(written: bool) -> None:
            fate.append(written)
            settled.set()

        ticket = Ticket(note)
        if not group.outboxes[0].put(frame(message), ticket, deadline=deadline):
            return False
        ticket.written()
        if not settled.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"{message.frame_type.name} could not be written in time")
        return fate[0]
