"""The end of a learner-budget benchmark: every learner stops at the same step, then answers each fragment
once.

The syncer that takes the reports writes a checkpoint and exits.  It is started again from there for as many
rounds as there are fragments, and each of them is answered with the frozen parameters minus the resumed
global.
"""

from __future__ import annotations

import time

from yeto_proto._generated.types import Dtype

from .client import SyncerClient
from .core.records import BcastFragment, PullRequest
from .errors import PartialMessageGenerationLost
from .exporter import encoded_parts
from .fragments import FragmentValues
from .journal import PushJournal

__all__ = ["Consolidation"]


class Consolidation:
    """Reports `steps` local steps, and answers one pull of every fragment from parameters that no longer
    change.

    tokens: units of data in all.  timeout: seconds for the report and the restart, and again for each pull.
    """

    def __init__(
        self,
        client: SyncerClient,
        values: FragmentValues,
        journal: PushJournal,
        *,
        steps: int,
        tokens: int,
        timeout: float,
    ) -> None:
        self._client, self._values, self._journal = client, values, journal
        self._steps, self._tokens, self._timeout = steps, tokens, timeout
        self._bases: dict[int, BcastFragment] = {}
        self._due: list[PullRequest] = []  # pulls of the present connection that wait for their base
        self._answered: set[int] = set()

    def run(self) -> None:
        """Raises TimeoutError when the restart or a pull does not come, RuntimeError for a pull that must not
        come, OSError when a push cannot be noted, and what `check_health` raises."""
        self._client.wait_for_budget_restart(self._report(), self._timeout)
        while len(self._answered) < self._values.num_fragments:
            self._answer(self._next_pull())

    def _report(self) -> int:
        deadline = time.monotonic() + self._timeout
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not self._client.wait_for(lambda: self._client.connected, left):
                raise TimeoutError(
                    f"the budget of {self._steps} steps could not be reported in {self._timeout:g} s"
                )
            epoch = self._client.try_budget_done(self._steps, left)
            if epoch is not None:
                return epoch

    def _next_pull(self) -> PullRequest:
        """The next pull whose base is there. Rounds may be pipelined, so several fragments can be asked for
        at once."""
        client = self._client
        deadline = time.monotonic() + self._timeout
        while True:
            self._take()
            for pull in self._due:
                if pull.fragment_id in self._bases:
                    self._due.remove(pull)
                    return pull
            left = deadline - time.monotonic()
            if left <= 0:
                waits = ", ".join(str(pull.fragment_id) for pull in self._due)
                what = f"base of fragment {waits}" if self._due else "pull"
                raise TimeoutError(f"no {what} came within {self._timeout:g} s after the budget restart")
            client.wait_for(lambda: client.has_updates or client.has_pulls, left)

    def _take(self) -> None:
        """Take in what has come; a pull of an earlier connection is asked again on the present one."""
        client = self._client
        for update in client.drain_updates():
            if update.fragment_id not in self._answered:
                self._bases[update.fragment_id] = update
        self._due += client.drain_pulls()
        self._due = [pull for pull in self._due if pull.generation == client.connection_generation]
        asked = [pull.fragment_id for pull in self._due]
        for fragment in asked:
            if fragment in self._answered or asked.count(fragment) > 1:
                raise RuntimeError(f"fragment {fragment} is pulled again; each is answered exactly once")

    def _answer(self, pull: PullRequest) -> None:
        base = self._bases[pull.fragment_id]
        delta = self._values.delta_from(base)
        dtype: Dtype = self._client.dtype
        self._journal.note(self._journal.records, pull.fragment_id, base.version)
        try:
            queued = self._client.push_fragment_parts(
                pull.fragment_id,
                pull.global_step,
                pull.round_attempt,
                base.version,
                self._steps,
                self._steps,
                self._tokens,
                encoded_parts(dtype, delta),
            )
        except PartialMessageGenerationLost:
            return  # the pull comes again on the next connection
        if queued:
            self._answered.add(pull.fragment_id)
            del self._bases[pull.fragment_id]
