"""The bookkeeping of the step boundary: counters, deferred pulls, spent anchors and their release."""

from __future__ import annotations

import pytest

from yeto_learner.core.boundary import Answer, Boundary, RecordedFragment
from yeto_learner.core.modes import InstallMode
from yeto_learner.core.records import BcastFragment, FinalManifest, PullRequest


class Script:
    """A boundary with two fragments, driven by short calls that number their arrivals."""

    def __init__(self, min_steps: int = 1, reuse_anchor: bool = False) -> None:
        self.boundary = Boundary(2, min_steps, reuse_anchor)
        self._arrivals = 0
        self.generation = 1

    def _arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals

    def broadcast(
        self, fragment: int, version: int, *, catch_up: bool = False, data: bytes = b""
    ) -> InstallMode:
        update = BcastFragment(
            fragment,
            version,
            b"",
            payload_hash=data or bytes([version]),
            catch_up=catch_up,
            sequence=self._arrival(),
            generation=self.generation,
        )
        mode = self.boundary.mode_of(update)
        self.boundary.installed(update, mode)
        return mode

    def pull(self, fragment: int, step: int, attempt: int = 1) -> PullRequest:
        pull = PullRequest(fragment, step, attempt, sequence=self._arrival(), generation=self.generation)
        self.boundary.add_pulls([pull])
        return pull

    def train(self, steps: int = 1, tokens: int = 10) -> None:
        for _ in range(steps):
            self.boundary.count_step(tokens)

    def answers(self) -> list[Answer]:
        """What can be answered now, handed out in order."""
        given = []
        for pull in list(self.boundary.pending):
            answer = self.boundary.answer(pull)
            if answer is not None:
                self.boundary.handed_out(answer)
                given.append(answer)
        return given


@pytest.mark.rule("learner.pull.deferred")
def test_a_pull_before_the_first_broadcast_waits_for_the_anchor() -> None:
    script = Script()
    script.train()
    script.pull(0, step=1)
    assert script.answers() == []
    script.broadcast(0, version=0)
    assert script.answers() == []  # no local step since the anchor yet
    script.train(tokens=7)
    (answer,) = script.answers()
    assert (answer.base_version, answer.local_step, answer.c_steps, answer.c_tokens) == (0, 2, 1, 7)


def test_pulls_are_answered_in_the_order_of_their_arrival() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.broadcast(1, 0)
    script.train()
    script.pull(1, step=2)
    script.pull(0, step=1)
    assert [answer.pull.fragment_id for answer in script.answers()] == [1, 0]


def test_the_h_gate_holds_a_pull_until_enough_local_steps() -> None:
    script = Script(min_steps=3)
    script.broadcast(0, 0)
    script.pull(0, 1)
    script.train(2)
    assert script.answers() == []
    script.train()
    assert [answer.c_steps for answer in script.answers()] == [3]


def test_another_attempt_of_the_same_step_is_answered_again_with_larger_counts() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.pull(0, 1, attempt=1)
    script.train(tokens=10)
    (first,) = script.answers()
    script.pull(0, 1, attempt=2)
    script.train(tokens=5)
    (second,) = script.answers()
    assert (first.c_steps, first.c_tokens) == (1, 10)
    assert (second.c_steps, second.c_tokens, second.base_version) == (2, 15, 0)
    assert second.anchor_serial == first.anchor_serial


def test_two_attempts_that_wait_give_two_answers() -> None:
    script = Script()
    script.pull(0, 1, attempt=1)
    script.pull(0, 1, attempt=2)
    script.broadcast(0, 0)
    script.train()
    assert [answer.pull.round_attempt for answer in script.answers()] == [1, 2]


def test_a_pull_that_was_sent_again_after_a_redial_waits_once() -> None:
    script = Script()
    script.pull(0, 1)
    script.pull(0, 1)
    assert len(script.boundary.pending) == 1


def test_a_storm_of_pulls_is_taken_in_with_few_comparisons() -> None:
    """Looking for each of them among all that wait would keep a training step for minutes."""
    compared = 0

    class Counted(PullRequest):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = PullRequest.__hash__

    script = Script()
    for generation in (1, 2):
        storm = [Counted(0, step, 1, generation=generation) for step in range(5000)]
        script.boundary.add_pulls(storm)
        assert script.boundary.pending == storm
        assert [pull.generation for pull in script.boundary.pending] == [generation] * 5000
    assert compared < 10 * 5000


def test_a_spent_anchor_answers_no_other_step_until_the_next_broadcast() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    assert len(script.answers()) == 1
    script.pull(0, 3)
    script.train()
    assert script.answers() == []
    script.broadcast(0, 1)
    script.train()
    assert [answer.base_version for answer in script.answers()] == [1]


def test_reuse_anchor_answers_every_round_from_one_anchor() -> None:
    script = Script(reuse_anchor=True)
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    script.pull(0, 3)
    assert [answer.pull.global_step for answer in script.answers()] == [1, 3]


def test_an_undelivered_push_frees_its_anchor() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    (answer,) = script.answers()
    script.pull(0, 3)
    assert script.answers() == []
    script.boundary.settled(answer, None)
    assert [each.pull.global_step for each in script.answers()] == [3]
    assert script.boundary.rounds_answered == 0


def test_an_undelivered_retry_leaves_an_anchor_spent_that_an_earlier_push_delivered() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    (first,) = script.answers()
    script.boundary.settled(first, 77)
    script.pull(0, 1, attempt=2)
    (second,) = script.answers()
    script.boundary.settled(second, None)
    script.pull(0, 3)
    assert script.answers() == []


def test_a_spent_anchor_of_a_replaced_link_is_released() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    (answer,) = script.answers()
    script.pull(0, 3)
    script.boundary.release_replaced(88)
    assert script.answers() == []  # the sender has not settled the push
    script.boundary.settled(answer, 77)
    script.boundary.release_replaced(77)
    assert script.answers() == []  # its link is still the current one
    script.boundary.release_replaced(88)
    assert [each.pull.global_step for each in script.answers()] == [3]


def test_a_released_anchor_is_still_known_as_pushed() -> None:
    # The newer global of the catch-up may hold the pushed delta: shifting would count it twice.
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    (answer,) = script.answers()
    script.boundary.settled(answer, 77)
    script.boundary.release_replaced(88)
    assert script.broadcast(0, 1, catch_up=True) is InstallMode.BLEND


def test_a_catch_up_without_a_push_shifts_and_keeps_the_counters() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train(2)
    assert script.broadcast(0, 1, catch_up=True) is InstallMode.SHIFT
    script.pull(0, 3)
    (answer,) = script.answers()
    assert (answer.c_steps, answer.c_tokens, answer.base_version) == (2, 20, 1)


def test_an_ordinary_broadcast_restarts_the_counters() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train(2)
    assert script.broadcast(0, 1) is InstallMode.BLEND
    script.train(1, tokens=3)
    script.pull(0, 3)
    (answer,) = script.answers()
    assert (answer.c_steps, answer.c_tokens) == (1, 3)


def test_the_first_broadcast_overwrites() -> None:
    assert Script().broadcast(1, 4) is InstallMode.OVERWRITE


def test_a_pull_whose_merge_arrived_while_it_waited_is_dropped() -> None:
    script = Script(min_steps=2)
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    assert script.answers() == []
    script.broadcast(0, 1)
    script.train(2)
    assert script.answers() == []
    assert script.boundary.pending == []


def test_a_pull_that_came_after_a_broadcast_is_answered_whatever_its_number() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.broadcast(0, 1)
    script.pull(0, 1)
    script.train()
    assert len(script.answers()) == 1


def test_a_pull_that_waited_for_its_anchor_is_never_dropped() -> None:
    script = Script()
    script.pull(0, 1)
    script.broadcast(0, 1)
    script.train()
    assert len(script.answers()) == 1


def test_pulls_of_a_lost_future_are_dropped_when_the_syncer_rewinds() -> None:
    script = Script(min_steps=2)
    script.broadcast(0, 4)
    script.pull(0, 6)
    script.pull(1, 7)
    script.generation = 2
    script.pull(0, 4)  # of the restarted syncer, and faster than its catch-up
    assert script.broadcast(0, 2, catch_up=True) is InstallMode.SHIFT
    assert [(pull.fragment_id, pull.global_step) for pull in script.boundary.pending] == [(1, 7), (0, 4)]


def test_pulls_of_another_link_are_forgotten_and_one_that_is_sent_again_stays() -> None:
    script = Script(min_steps=2)
    script.broadcast(0, 0)
    script.broadcast(1, 0)
    script.pull(0, 1)
    script.pull(1, 2)
    script.generation = 2
    again = script.pull(0, 1)
    script.boundary.keep_pulls_of(2)
    assert script.boundary.pending == [again]
    assert script.boundary.pending[0].generation == 2


def test_a_push_for_a_merge_that_the_anchor_holds_does_not_block_the_next_round() -> None:
    """A syncer that asked again just before it merged: its second PULL arrives behind the broadcast."""
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    assert len(script.answers()) == 1
    script.broadcast(0, 1)
    script.train()
    script.pull(0, 1)
    assert [answer.base_version for answer in script.answers()] == [1]
    script.pull(0, 3)
    assert [(answer.pull.global_step, answer.base_version) for answer in script.answers()] == [(3, 1)]
    script.pull(0, 5)
    assert script.answers() == [], "step 3 has spent it"


def test_a_pull_that_overtakes_the_catch_up_waits_for_it() -> None:
    """When the push was merged a newer version comes, and otherwise the anchor is free again."""
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    (answer,) = script.answers()
    script.boundary.settled(answer, 77)
    script.generation = 88
    script.pull(0, 3)
    script.boundary.release_replaced(88)
    (pull,) = script.boundary.pending
    assert script.boundary.answer(pull, catching_up={0, 1}) is None
    freed = script.boundary.answer(pull, catching_up={1})  # the version that it has was broadcast again
    assert freed is not None and freed.base_version == 0


def test_a_settled_push_of_an_older_anchor_does_not_touch_the_new_one() -> None:
    script = Script()
    script.broadcast(0, 0)
    script.train()
    script.pull(0, 1)
    (old,) = script.answers()
    script.broadcast(0, 1)
    script.train()
    script.pull(0, 3)
    (new,) = script.answers()
    script.boundary.settled(old, None)
    script.pull(0, 5)
    assert script.answers() == []
    script.boundary.settled(new, 77)
    assert script.boundary.rounds_answered == 1


def test_the_global_step_is_the_newest_version_seen() -> None:
    script = Script()
    script.broadcast(0, 5)
    script.broadcast(1, 4)
    assert script.boundary.global_step == 5
    script.boundary.finalized(FinalManifest(8, (7, 8)))
    assert script.boundary.global_step == 8


def test_a_restart_with_the_recorded_version_keeps_counters_and_the_spent_mark() -> None:
    boundary = Boundary(2)
    boundary.restore(100, 900, 7, [RecordedFragment(5, 4, 40, True, 7), None])
    first = BcastFragment(0, 5, b"", payload_hash=b"x", sequence=1)
    assert boundary.mode_of(first) is InstallMode.ANCHOR_ONLY
    boundary.installed(first, InstallMode.ANCHOR_ONLY)
    boundary.add_pulls([PullRequest(0, 9, 1, sequence=2)])
    assert boundary.answer(boundary.pending[0]) is None  # spent by step 7 in the earlier process
    boundary.release_replaced(123)
    answer = boundary.answer(boundary.pending[0])
    assert answer is not None
    assert (answer.local_step, answer.c_steps, answer.c_tokens) == (100, 4, 40)
    unknown = BcastFragment(1, 6, b"", payload_hash=b"y", sequence=3)
    assert boundary.mode_of(unknown) is InstallMode.OVERWRITE


def test_a_record_says_what_a_restart_needs() -> None:
    script = Script()
    script.broadcast(0, 3)
    script.train(2)
    script.pull(0, 5)
    (answer,) = script.answers()
    script.boundary.settled(answer, 77)
    assert script.boundary.record() == [RecordedFragment(3, 2, 20, True, 5), None]


def test_a_record_that_was_not_used_yet_is_recorded_again() -> None:
    boundary = Boundary(1)
    recorded = RecordedFragment(5, 4, 40, False, None)
    boundary.restore(10, 100, 5, [recorded])
    assert boundary.record() == [recorded]


@pytest.mark.parametrize(("fragments", "steps"), [(0, 1), (1, 0)])
def test_impossible_boundaries_are_refused(fragments: int, steps: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        Boundary(fragments, steps)
