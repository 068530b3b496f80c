"""The HTML report of a demo: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import accumulate
from string import Template

from yeto_learner.demo.charts import Cell, Series, grid_chart, line_chart
from yeto_learner.demo.folder import Folder
from yeto_learner.demo.promises import Promise
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.story import Answer, Curve, Round, Story, Trainee
from yeto_proto._generated.sizes import bulk_bytes, push_bytes
from yeto_proto._generated.types import Dtype
from yeto_proto.layout import Layout

Rows = Iterable[tuple[str, str]]


def figures(story: Story) -> list[tuple[str, str]]:
    """The losses that are printed and put on top of the report, in nats per byte of held-out text."""
    steps = ", ".join(str(one.total_steps) for one in story.learners)
    return [
        ("untrained", f"{story.before:.4f}"),
        (f"merged from {len(story.learners)} learners, {steps} steps", f"{story.merged:.4f}"),
        (f"one learner alone, one shard, {story.alone_steps} steps", f"{story.alone_on_shard:.4f}"),
        (f"one learner alone, all text, {story.alone_steps} steps", f"{story.alone_on_full:.4f}"),
    ]


def render(
    settings: Settings, layout: Layout, story: Story, promises: Sequence[Promise], folder: Folder
) -> str:
    """The whole page."""
    template = Template((files("yeto_learner.demo") / "templates" / "report.html").read_text("utf-8"))
    kept = sum(promise.kept for promise in promises)
    return template.substitute(
        verdict=f"{kept} of {len(promises)} promises kept",
        verdict_class="good" if kept == len(promises) else "bad",
        seconds=f"{story.seconds:.0f}",
        figures=_rows(figures(story)),
        promises="".join(_promise(promise) for promise in promises),
        learners=len(story.learners),
        loss=_loss_chart(story),
        training_loss=_training_chart(story),
        answers=_answers_chart(story),
        staleness=_staleness_chart(story),
        steps=_steps_chart(story),
        bytes=_bytes_chart(settings, layout, story),
        pace=_pace_chart(story),
        ledger=_rows(_ledger(story)),
        layout="".join(_fragment(number, layout) for number in range(layout.num_fragments)),
        fingerprint=layout.fingerprint().hex(),
        settings=_rows(_settings(settings)),
        folder=escape(folder.root.name),
    )


def moved_bytes(settings: Settings, layout: Layout, one: Round) -> int:
    """Tensor bytes of one round: a push from each that answered, a broadcast to each that was asked."""
    dtype = Dtype[settings.dtype.upper()]
    numel = layout.fragments[one.fragment].numel
    return len(one.answers) * push_bytes(dtype, numel) + len(one.expected) * bulk_bytes(dtype, numel)


def _loss_chart(story: Story) -> str:
    series = _curves(story, lambda one: one.held_out)
    return line_chart(series, "local steps of a learner", "held-out loss, nats per byte")


def _training_chart(story: Story) -> str:
    series = _curves(story, lambda one: one.training)
    return line_chart(series, "local steps of a learner", "training loss, nats per byte")


def _curves(story: Story, pick: Callable[[Trainee], Curve]) -> list[Series]:
    """One line per learner, then the two baselines, dashed."""
    trainees = (*story.learners, story.alone_shard, story.alone_full)
    series = []
    for style, one in enumerate(trainees):
        curve = pick(one)
        alone = style >= len(story.learners)
        series.append(Series(one.name, curve.x, curve.y, style, dashed=alone, breaks=curve.breaks))
    return series


def _answers_chart(story: Story) -> str:
    return grid_chart(
        [
            (f"learner {index}", [_cell(one, index) for one in story.rounds])
            for index in range(len(story.learners))
        ],
        "round",
    )


def _cell(one: Round, learner: int) -> Cell:
    title = f"round {one.step}, fragment {one.fragment}: "
    for answer in one.answers:
        if answer.learner == learner:
            return Cell("answered", f"{title}{answer.steps} steps, staleness {answer.staleness}")
    if any(member == learner for member, _ in one.expected):
        return Cell("missed", title + "asked, no answer in time")
    return Cell("away", title + "not connected")


def _staleness_chart(story: Story) -> str:
    series = _answers(story, lambda answer: answer.staleness)
    return line_chart(series, "round", "staleness of the answer, rounds", from_zero=True, whole=True)


def _steps_chart(story: Story) -> str:
    series = _answers(story, lambda answer: answer.steps)
    return line_chart(series, "round", "local steps in the answer", from_zero=True, whole=True)


def _answers(story: Story, pick: Callable[[Answer], int]) -> list[Series]:
    """A cloud of points per learner, one point for each of its answers."""
    series = []
    for index, trainee in enumerate(story.learners):
        own = [(one.step, pick(a)) for one in story.rounds for a in one.answers if a.learner == index]
        series.append(Series(trainee.name, [x for x, _ in own], [y for _, y in own], index, points=True))
    return series


def _bytes_chart(settings: Settings, layout: Layout, story: Story) -> str:
    """Beside it: ring all-reduce moves 2 (M - 1) gradients in every step, over all M learners."""
    rounds = [one.step for one in story.rounds]
    moved = accumulate(moved_bytes(settings, layout, one) for one in story.rounds)
    gradient = sum(bulk_bytes(Dtype[settings.dtype.upper()], fragment.numel) for fragment in layout.fragments)
    steps_a_round = settings.inner_steps / settings.fragments
    every_step = [2 * (settings.learners - 1) * gradient * steps_a_round * step for step in rounds]
    series = [
        Series("this run", rounds, [total / 1e6 for total in moved], 0),
        Series(
            "all-reduce of gradients in every step (computed)",
            rounds,
            [each / 1e6 for each in every_step],
            3,
            dashed=True,
        ),
    ]
    return line_chart(series, "round", "tensor data moved so far, MB", from_zero=True)


def _pace_chart(story: Story) -> str:
    series = [
        Series(
            "launch to commit",
            [one.step for one in story.rounds],
            [one.milliseconds for one in story.rounds],
            0,
        )
    ]
    return line_chart(series, "round", "milliseconds", from_zero=True)


def _ledger(story: Story) -> Rows:
    for index, trainee in enumerate(story.learners):
        lives = story.lives(index)
        answers = sum(len(rounds) for rounds in lives)
        yield trainee.name, f"{answers} answers, {trainee.total_steps} local steps, connections: {len(lives)}"


def _settings(settings: Settings) -> Rows:
    model = settings.model
    yield (
        "model",
        f"{model.context} bytes of context, {model.layers} layers of {model.hidden}, {settings.backend}",
    )
    yield "inner optimizer", f"AdamW, rate {settings.rate:g}, batch {settings.batch}"
    yield "outer optimizer", f"Nesterov, rate {settings.outer_rate:g}, momentum {settings.outer_momentum:g}"
    yield (
        "rounds",
        f"{settings.rounds}; each of {settings.fragments} fragments merged per {settings.inner_steps} steps",
    )
    yield "quorum", f"{settings.quorum} of {settings.learners} learners"
    yield "wire", f"{settings.dtype}, {settings.streams} data streams per learner"
    yield "seed", str(settings.seed)


def _promise(promise: Promise) -> str:
    mark, kind = ("✔", "good") if promise.kept else ("✘", "bad")
    text, detail = escape(promise.text), escape(promise.detail)
    return f'<li><b class="{kind}">{mark}</b> {text} <small>{detail}</small></li>'


def _rows(rows: Rows) -> str:
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)


def _fragment(number: int, layout: Layout) -> str:
    fragment = layout.fragments[number]
    names = ", ".join(tensor.name for tensor in fragment.tensors)
    mode = fragment.merge_mode.name.lower()
    return f"<tr><th>{number}</th><td>{mode}</td><td>{fragment.numel:,}</td><td>{escape(names)}</td></tr>"
