"""`Learner` in a learner-budget benchmark: report, restart, one answer for each fragment, the usual end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.e2e.learner.rig import flat, parameters, running, send_cut, train, wire_values
from tests.e2e.scripted_syncer import WAIT, Peer
from yeto_learner import Learner
from yeto_proto import dtypes
from yeto_proto._generated import messages as wire
from yeto_proto._generated.errors import WrongState


class Finisher:
    """Runs `finish` beside the script."""

    def __init__(self, learner: Learner) -> None:
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(learner.finish,))
        self._thread.start()

    def _run(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except (RuntimeError, OSError) as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(WAIT)
        assert not self._thread.is_alive()


@contextmanager
def consolidating() -> Iterator[tuple[Learner, Finisher, Peer]]:
    """A learner that has reported a budget of one step, and the syncer that came back after it."""
    with running(budget_steps=1) as (made, cutoff, syncer):
        made.step(tokens=1)
        finisher = Finisher(made)
        cutoff.expect(wire.BudgetDone)
        cutoff.close()
        yield made, finisher, syncer.next_peer()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.rule("learner.budget.frozen")
def test_the_two_closes_of_a_benchmark(dtype: str) -> None:
    arrays = parameters()
    with running(arrays, dtype=dtype, budget_steps=2) as (made, cutoff, syncer):
        for _ in range(2):
            assert not made.done
            train(arrays)
            made.step(tokens=50)
        assert made.done
        frozen = [flat(made, arrays, fragment) for fragment in range(2)]
        finisher = Finisher(made)
        assert cutoff.expect(wire.BudgetDone) == wire.BudgetDone(2)
        cutoff.close()
        resumed = syncer.next_peer()
        bases = []
        for fragment in range(2):
            raw, data = wire_values(made, fragment, 20 + fragment)
            bases.append(raw)
            resumed.broadcast(fragment, 3 + fragment, data)
        for fragment in range(2):
            resumed.send(wire.PullReq(fragment, 5 + fragment, 1))
            push = resumed.expect(wire.PushFragment)
            delta = dtypes.encode(made.client.dtype, frozen[fragment] - bases[fragment])
            assert bytes(push.delta) == bytes(delta)
            assert push == wire.PushFragment(
                0, fragment, 5 + fragment, 1, 3 + fragment, 2, 2, 100, push.delta
            )
            np.testing.assert_array_equal(flat(made, arrays, fragment), frozen[fragment])
        cut = send_cut(made, resumed, 6)
        resumed.expect(wire.FinalAck)
        resumed.send(wire.Shutdown())
        finisher.join()
        assert finisher.error is None
        for fragment in range(2):
            np.testing.assert_array_equal(flat(made, arrays, fragment), cut[fragment])


@pytest.mark.rule("learner.budget.frozen")
def test_a_pull_before_its_base_waits_and_a_second_pull_of_a_fragment_is_an_error() -> None:
    with consolidating() as (made, finisher, resumed):
        resumed.send(wire.PullReq(0, 1, 1))
        resumed.expect_nothing()
        _, data = wire_values(made, 0, 1)
        resumed.broadcast(0, 0, data)
        resumed.expect(wire.PushFragment)
        resumed.send(wire.PullReq(0, 3, 1))
        finisher.join()
        assert "pulled again" in str(finisher.error)


def test_pulls_of_pipelined_rounds_are_answered_as_their_bases_come() -> None:
    with consolidating() as (made, finisher, resumed):
        resumed.send(wire.PullReq(0, 1, 1))
        resumed.send(wire.PullReq(1, 2, 1))
        for fragment in (1, 0):
            _, data = wire_values(made, fragment, 1)
            resumed.broadcast(fragment, 0, data)
            push = resumed.expect(wire.PushFragment)
            assert (push.fragment_id, push.global_step) == (fragment, fragment + 1)
        send_cut(made, resumed, 2)
        resumed.expect(wire.FinalAck)
        resumed.send(wire.Shutdown())
        finisher.join()
        assert finisher.error is None


def test_one_fragment_is_not_asked_for_by_two_rounds() -> None:
    with consolidating() as (_, finisher, resumed):
        resumed.send(wire.PullReq(0, 1, 1))
        resumed.send(wire.PullReq(0, 3, 1))
        finisher.join()
        assert "fragment 0 is pulled again" in str(finisher.error)


def test_a_restart_that_does_not_come_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(budget_steps=1, finalization_timeout_s=WAIT) as (made, cutoff, _):
        wait = made.client.wait_for_budget_restart

        def not_so_long(epoch: int, timeout: float | None) -> None:
            assert timeout == WAIT
            wait(epoch, 0.3)  # for the restart alone; the report may need its time

        monkeypatch.setattr(made.client, "wait_for_budget_restart", not_so_long)
        made.step(tokens=1)
        with pytest.raises(TimeoutError, match=r"did not come back within 0\.3 s"):
            made.finish()
        cutoff.expect(wire.BudgetDone)


def test_an_unfinished_budget_is_not_reported() -> None:
    with running(budget_steps=3) as (made, peer, _):
        made.step(tokens=1)
        with pytest.raises(WrongState, match="1 of 3 budget_steps are done"):
            made.finish()
        peer.expect_nothing()


@pytest.mark.parametrize("budget", [0, -1, 2**32])
def test_a_budget_is_a_positive_u32(budget: int) -> None:
    with pytest.raises(ValueError, match="budget_steps"):
        Learner(parameters(), "127.0.0.1:1", budget_steps=budget)
