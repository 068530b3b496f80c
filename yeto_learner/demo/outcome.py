"""The demo from start to end: run, report, and what is printed."""

from __future__ import annotations

import json
from typing import Any

from yeto_learner.demo.folder import DemoError, Folder
from yeto_learner.demo.report import figures, render
from yeto_learner.demo.run import Demo, Result
from yeto_learner.demo.settings import Settings
from yeto_learner.demo.story import Story, Trainee
from yeto_learner.demo.view import make_view
from yeto_proto.console.signals import SignalGuard


def run_demo(settings: Settings, folder: Folder, port: int, guard: SignalGuard, *, as_json: bool) -> int:
    """Runs the demo and returns 0 when every promise was kept, else 1.

    Raises DemoError when it cannot be finished.
    """
    story = Story(settings.rounds, [Trainee(f"learner {learner}") for learner in range(settings.learners)])
    view = make_view(story, settings, quiet=as_json)
    try:
        with folder.prepared():
            with view.showing():
                result = Demo(settings, folder, port, story, view, guard).run()
            outcome = _as_dict(result, folder)
            folder.report.write_text(render(settings, result.layout, story, result.promises, folder), "utf-8")
            folder.result.write_text(json.dumps(outcome, indent=2) + "\n", "utf-8")
    except BrokenPipeError:
        raise  # not a file of ours, but whoever reads what we print
    except OSError as error:
        where = str(error.filename or folder.root)
        raise DemoError(
            f"cannot write: {error.strerror or error}", where, "free some space or give another --output"
        ) from error
    if as_json:
        print(json.dumps(outcome), flush=True)
    else:
        lines = ["", "held-out loss, nats per byte"]
        lines += [f"  {name:<52}{value}" for name, value in figures(story)]
        view.summary(result.promises, [*lines, ""])
        print(f"\nreport: {folder.report}   {story.seconds:.0f} s", flush=True)
    return 0 if result.kept else 1


def _as_dict(result: Result, folder: Folder) -> dict[str, Any]:
    story = result.story
    return {
        "ok": result.kept,
        "held_out_loss": {
            "before": story.before,
            "merged": story.merged,
            "alone_on_one_shard": story.alone_on_shard,
            "alone_on_all_text": story.alone_on_full,
        },
        "promises": [
            {"text": promise.text, "kept": promise.kept, "detail": promise.detail}
            for promise in result.promises
        ],
        "rounds": len(story.rounds),
        "local_steps": [one.total_steps for one in story.learners],
        "alone_steps": story.alone_steps,
        "killed_after_round": story.killed_after,
        "returned_in_round": story.returned_at,
        "seconds": round(story.seconds, 2),
        "folder": str(folder.root),
        "checkpoint": str(folder.checkpoint),
        "event_tape": str(folder.tape),
        "report": str(folder.report),
    }
