"""What a demo run promises, each looked at in what the run left behind. A broken promise is an exit code of
1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from yeto_learner.demo.settings import Settings
from yeto_learner.demo.story import Round, Story
from yeto_proto.files import Snapshot, read_final_state, read_marker
from yeto_proto.layout import Layout

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Promise:
    """One promise, whether it holds, and the figures that show it."""

    text: str
    kept: bool
    detail: str


@dataclass(frozen=True)
class Evidence:
    """What a finished run left behind."""

    settings: Settings
    layout: Layout
    story: Story
    snapshot: Snapshot
    learners: Sequence[Mapping[str, Array]]
    """The final parameters of every learner, as its process saved them."""
    checkpoint: Path
    final_state: Path
    syncer_exit: int


def check(evidence: Evidence) -> list[Promise]:
    """All promises, in the order in which they are printed."""
    return [
        _loss_fell(evidence.story),
        _merging_helps(evidence.story),
        *_same_parameters(evidence),
        _marked(evidence),
        _contiguous(evidence.story.rounds, evidence.settings.rounds),
        _killed_and_back(evidence.story, evidence.settings.victim),
        Promise(
            "the syncer ended by itself with exit code 0",
            evidence.syncer_exit == 0,
            f"exit code {evidence.syncer_exit}",
        ),
    ]


def _loss_fell(story: Story) -> Promise:
    fall = 1.0 - story.merged / story.before
    detail = f"{story.before:.3f} -> {story.merged:.3f} nats per byte, {fall:.0%} less"
    return Promise("the held-out loss fell by more than a third", fall > 1 / 3, detail)


def _merging_helps(story: Story) -> Promise:
    detail = f"{story.merged:.3f} against {story.alone_on_shard:.3f}"
    return Promise(
        "the merged model beats a learner alone on one shard", story.merged < story.alone_on_shard, detail
    )


def _same_parameters(evidence: Evidence) -> Iterator[Promise]:
    fragments = [fragment.params for fragment in evidence.snapshot.fragments]
    different = [
        f"learner {learner}, {name}"
        for learner, parameters in enumerate(evidence.learners)
        for name, expected in named(evidence.layout, fragments)
        if parameters[name].tobytes() != expected.tobytes()
    ]
    total = sum(fragment.numel for fragment in evidence.layout.fragments)
    yield Promise(
        "every learner's parameters equal the f32 checkpoint, bit for bit",
        not different and len(evidence.learners) == evidence.settings.learners,
        "; ".join(different[:3]) or f"{len(evidence.learners)} learners, {total:,} values each",
    )
    state = read_final_state(evidence.final_state)
    equal = len(state) == len(fragments) and all(
        np.asarray(one).tobytes() == other.tobytes() for one, other in zip(state, fragments, strict=True)
    )
    yield Promise("the final state equals the checkpoint", equal, f"{len(state)} fragments")


def _marked(evidence: Evidence) -> Promise:
    text = "the checkpoint is marked final at its step"
    try:
        step = read_marker(evidence.checkpoint)
    except FileNotFoundError:
        return Promise(text, False, "there is no marker")
    kept = step == evidence.snapshot.global_step == evidence.settings.rounds
    detail = f"marker {step}, checkpoint {evidence.snapshot.global_step}, rounds {evidence.settings.rounds}"
    return Promise(text, kept, detail)


def _contiguous(rounds: Sequence[Round], planned: int) -> Promise:
    steps = [one.step for one in rounds]
    kept = steps == list(range(1, planned + 1))
    detail = f"steps 1 to {planned}" if kept else f"{len(steps)} steps on the tape, {planned} planned"
    return Promise("the event tape holds every round in order", kept, detail)


def _killed_and_back(story: Story, victim: int) -> Promise:
    """True only if the tape shows it: answers, rounds without any, then answers of another connection."""
    text = f"learner {victim} was killed, missed rounds and came back"
    lives = story.lives(victim)
    if story.killed_after is None or len(lives) < 2:
        return Promise(
            text, False, f"killed after round {story.killed_after}, connections on the tape: {len(lives)}"
        )
    back = lives[1][0]
    missed = sum(
        story.killed_after < one.step < back and victim not in one.responders for one in story.rounds
    )
    rounds = "1 round" if missed == 1 else f"{missed} rounds"
    detail = f"killed after round {story.killed_after}, {rounds} without it, back in round {back}"
    return Promise(text, missed > 0, detail)


def named(layout: Layout, fragments: Sequence[Array]) -> Iterator[tuple[str, Array]]:
    """The tensors of flat fragments: (name, flat view), in layout order."""
    for fragment, values in zip(layout.fragments, fragments, strict=True):
        start = 0
        for tensor in fragment.tensors:
            yield tensor.name, values[start : start + tensor.numel]
            start += tensor.numel
