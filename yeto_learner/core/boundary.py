"""The step boundary of a learner as pure bookkeeping: counters, anchors' versions, pending pulls, spent
anchors.

It decides *which* broadcast is installed *how*, and *which* pull is answered with *which* numbers.  The
values themselves (anchors, deltas) belong to the caller, so a simulator can run this without a single array.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from yeto_proto._generated.machines import ANCHOR, AnchorInput, AnchorState
from yeto_proto.machine import advance

from .modes import InstallMode, live_install_mode, resume_install_mode
from .records import BcastFragment, FinalManifest, PullRequest

__all__ = ["Answer", "Boundary", "FragmentState", "RecordedFragment"]


@dataclass(frozen=True, slots=True)
class RecordedFragment:
    """What a resume record says of one fragment."""

    version: int
    c_steps: int  # local steps since its anchor
    c_tokens: int
    pushed: bool  # a delta from this anchor was sent
    spent_step: int | None  # the global step whose push spent it
    pushed_from: int | None = None  # the lowest anchor version of a push after the record, if there was one


@dataclass(frozen=True, slots=True)
class Answer:
    """The numbers of one PUSH_FRAGMENT, fixed at the step boundary at which its delta is taken."""

    pull: PullRequest
    base_version: int
    local_step: int
    c_steps: int
    c_tokens: int
    anchor_serial: int  # which anchor the delta is taken from, in the life of this learner


@dataclass(slots=True)
class FragmentState:
    """What the learner knows of one fragment.

    `anchor` follows the machine of the specification.  An anchor is *spent* for other rounds once a delta of
    it was handed out; it is *pushed* when such a delta may have reached the syncer.  A release ends the
    first, never the second.
    """

    anchor: AnchorState = ANCHOR.initial
    version: int | None = None  # of the anchor; None while there is none
    payload_hash: bytes = b""
    steps_at_reset: int = 0
    tokens_at_reset: int = 0
    serial: int = 0  # goes up with every new anchor
    in_flight: int = 0  # pushes of this anchor that the sender has not settled
    delivered: bool = False  # a push of this anchor was handed to a link completely
    spent_step: int | None = None  # the step that a spent anchor was pushed for
    # The link that the last settled push went out on; None for a push of an earlier process.
    spent_generation: int | None = None
    recorded: RecordedFragment | None = None  # until the first broadcast after a restart

    @property
    def pushed(self) -> bool:
        return self.delivered or self.in_flight > 0

    def take(self, event: AnchorInput) -> None:
        """Follow the anchor's machine."""
        self.anchor = advance(ANCHOR, self.anchor, event)
        if self.anchor is not AnchorState.SPENT:
            self.spent_step = None


def _spent_for_nothing(spent_step: int | None, version: int, step: int) -> bool:
    """Whether the spent anchor holds the step that its push answered, and this pull asks for a later one.

    A syncer that asked again shortly before it merged makes a learner do that, where the repeated PULL comes
    after the broadcast of its own merge.  Such a push is never merged, and without this exception the learner
    would wait for a broadcast that waits for the learner.
    """
    return spent_step is not None and spent_step <= version < step


@dataclass(slots=True)
class Boundary:
    """Counters, versions and pending pulls of a learner.

    Parameters: `min_steps`, a pull is answered after that many local steps since the anchor (the H gate, at
    least 1); `reuse_anchor`, one anchor may answer several rounds (asynchronous carry) instead of one.
    """

    num_fragments: int
    min_steps: int = 1
    reuse_anchor: bool = False
    steps: int = 0  # local steps in all
    tokens: int = 0
    global_step: int = 0  # the newest version seen
    rounds_answered: int = 0
    pending: list[PullRequest] = field(default_factory=list)
    fragments: list[FragmentState] = field(init=False)

    def __post_init__(self) -> None:
        if self.num_fragments < 1 or self.min_steps < 1:
            raise ValueError("a boundary needs at least one fragment and min_steps of at least 1")
        self.fragments = [FragmentState() for _ in range(self.num_fragments)]

    # -- local progress

    def count_step(self, tokens: int) -> None:
        """One optimizer step on `tokens` units of data is done."""
        self.steps += 1
        self.tokens += tokens

    # -- broadcasts

    @property
    def missing(self) -> list[int]:
        """The fragments that have no anchor yet."""
        return [number for number, state in enumerate(self.fragments) if state.version is None]

    def mode_of(self, update: BcastFragment, *, anchor_saved: bool = True) -> InstallMode:
        """How this broadcast is to be installed.

        `anchor_saved` is looked at for the first broadcast after a restart only: the anchor's values came
        with the resume record.
        """
        state = self.fragments[update.fragment_id]
        if state.version is None:
            recorded = state.recorded
            return resume_install_mode(
                version=update.version,
                recorded_version=None if recorded is None else recorded.version,
                anchor_saved=anchor_saved,
                pushed=recorded is not None and recorded.pushed,
                pushed_from=None if recorded is None else recorded.pushed_from,
            )
        return live_install_mode(
            version=update.version,
            anchor_version=state.version,
            catch_up=update.catch_up,
            same_bytes=bool(update.payload_hash) and update.payload_hash == state.payload_hash,
            pushed=state.pushed,
        )

    def installed(self, update: BcastFragment, mode: InstallMode) -> None:
        """Record that `update` was installed by `mode`, and forget the pulls that it settles."""
        state = self.fragments[update.fragment_id]
        self.global_step = max(self.global_step, update.version)
        if mode is InstallMode.CONFIRM:
            state.take(AnchorInput.REPLAY)
            return
        if state.version is not None:
            self._drop_settled_pulls(update, state.version)
        if mode.keeps_counters and state.recorded is not None:
            state.steps_at_reset = self.steps - state.recorded.c_steps
            state.tokens_at_reset = self.tokens - state.recorded.c_tokens
        elif not mode.keeps_counters:
            state.steps_at_reset, state.tokens_at_reset = self.steps, self.tokens
        kept = state.recorded if mode is InstallMode.ANCHOR_ONLY else None
        state.version, state.payload_hash = update.version, update.payload_hash
        state.serial += 1
        state.in_flight = 0
        state.delivered = kept is not None and kept.pushed
        state.spent_generation = None
        state.recorded = None
        state.take(AnchorInput.BROADCAST)
        if kept is not None and kept.spent_step is not None:
            state.take(AnchorInput.PUSH)  # by the earlier process
            state.spent_step = kept.spent_step

    def _drop_settled_pulls(self, update: BcastFragment, old_version: int) -> None:
        # The version of a fragment is the step of its last merge.  A pull that was waiting when the merge of
        # its own step arrived asks for a round that is over; one of an earlier connection, when the syncer
        # comes back with an older version, for a round that does not exist any more.  Answering either would
        # spend the new anchor for nothing.
        if self.reuse_anchor:
            return

        def over(pull: PullRequest) -> bool:
            if pull.fragment_id != update.fragment_id or pull.sequence > update.sequence:
                return False
            if update.version < old_version:
                return pull.generation != update.generation
            return old_version < pull.global_step <= update.version

        self.pending = [pull for pull in self.pending if not over(pull)]

    # -- pulls

    def add_pulls(self, pulls: Iterable[PullRequest]) -> None:
        """Append pulls to those that wait.  One that waits already, and was sent again after a redial, takes
        the place of the older one.
        """
        newest = {pull: pull for pull in self.pending}  # a key keeps its place when its value changes
        for pull in pulls:
            newest[pull] = pull
        self.pending = list(newest.values())

    def keep_pulls_of(self, generation: int) -> None:
        """Forget the pulls of every other link than `generation`: what the syncer still wants of them it asks
        for again on the new link.

        One that it does not ask for again may belong to a future that a restarted syncer has lost, and would
        spend an anchor that the present rounds need.
        """
        self.pending = [pull for pull in self.pending if pull.generation == generation]

    def answer(self, pull: PullRequest, catching_up: Collection[int] = ()) -> Answer | None:
        """The numbers to answer this pull with now, or None while it has to wait.

        `catching_up` are the fragments that the current link has not broadcast yet.  Their pulls wait: a PULL
        may overtake the catch-up, and only that tells whether the syncer still has the anchor's version and
        what was pushed from it.  An answer before could be merged a second time.
        """
        if pull.fragment_id in catching_up:
            return None
        state = self.fragments[pull.fragment_id]
        c_steps = self.steps - state.steps_at_reset
        if state.version is None or state.anchor is AnchorState.FINAL or c_steps < self.min_steps:
            return None
        if (
            state.anchor is AnchorState.SPENT
            and not self.reuse_anchor
            and state.spent_step != pull.global_step
            and not _spent_for_nothing(state.spent_step, state.version, pull.global_step)
        ):
            return None
        c_tokens = self.tokens - state.tokens_at_reset
        return Answer(pull, state.version, self.steps, c_steps, c_tokens, state.serial)

    def handed_out(self, answer: Answer) -> None:
        """The delta of this answer was taken; the pull is no longer pending and its anchor is spent."""
        self.pending.remove(answer.pull)
        state = self.fragments[answer.pull.fragment_id]
        state.take(AnchorInput.PUSH)
        state.spent_step = answer.pull.global_step
        state.in_flight += 1

    def settled(self, answer: Answer, generation: int | None) -> None:
        """The push of this answer went out on the link `generation`, or was not delivered (None).

        A push that was not delivered frees its anchor, unless an earlier one of the same anchor was.
        """
        if generation is not None:
            self.rounds_answered += 1
        state = self.fragments[answer.pull.fragment_id]
        if state.serial != answer.anchor_serial:
            return
        state.in_flight -= 1
        if generation is not None:
            state.delivered = True
            state.spent_generation = generation
        elif not state.pushed and state.anchor is AnchorState.SPENT:
            state.take(AnchorInput.RELEASED)

    def release_replaced(self, generation: int) -> None:
        """Free each spent anchor whose push went out on another link than the current `generation`.

        Anchors with a push that is still with the sender stay as they are.  A spent mark from an earlier
        process counts as one of a replaced link.
        """
        for state in self.fragments:
            replaced = state.in_flight == 0 and state.spent_generation != generation
            if replaced and state.anchor is AnchorState.SPENT:
                state.take(AnchorInput.RELEASED)

    def finalized(self, manifest: FinalManifest) -> None:
        """The final cut was installed: no pull is answered any more, and no local progress is left."""
        self.global_step = max(self.global_step, manifest.global_step)
        self.pending.clear()
        for state, version in zip(self.fragments, manifest.versions, strict=True):
            state.version = version
            state.steps_at_reset, state.tokens_at_reset = self.steps, self.tokens
            state.serial += 1
            state.in_flight, state.delivered = 0, False
            if state.anchor is not AnchorState.FINAL:
                state.take(AnchorInput.CUT)

    # -- restart

    def restore(
        self, steps: int, tokens: int, global_step: int, fragments: Iterable[RecordedFragment | None]
    ) -> None:
        """Continue from a resume record; None for a fragment that it does not know."""
        self.steps, self.tokens, self.global_step = steps, tokens, global_step
        for state, recorded in zip(self.fragments, fragments, strict=True):
            state.recorded = recorded

    def record(self) -> list[RecordedFragment | None]:
        """What a resume record has to say of every fragment now."""
        return [
            state.recorded
            if state.version is None
            else RecordedFragment(
                state.version,
                self.steps - state.steps_at_reset,
                self.tokens - state.tokens_at_reset,
                state.pushed,
                state.spent_step,
            )
            for state in self.fragments
        ]
