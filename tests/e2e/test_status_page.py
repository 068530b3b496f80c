"""The status page in a browser: live beside a run, and as the report of its tape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.e2e.crew import Crew
from tests.e2e.processes import Processes, Syncer
from tests.e2e.test_learner_real_syncer import wait_for
from tests.e2e.test_metrics import get
from yeto_syncer.tape_cli import main as yeto_tape

PICTURES = Path(__file__).resolve().parents[2] / "build" / "screenshots"
SLOW = (
    *(
        "--learners",
        "3",
        "--min-start-learners",
        "2",
        "--total-steps",
        "100000",
        "--quorum",
        "2",
        "--grace-ms",
        "0",
    ),
    *("--sync-interval-steps", "0", "--checkpoint-every", "5", "--min-round-interval-ms", "50"),
)


def served(processes: Processes, tmp_path: Path) -> tuple[Syncer, str, Path]:
    tape = tmp_path / "events.jsonl"
    flags = (
        "--checkpoint-path",
        str(tmp_path / "state.ckpt"),
        "--event-tape",
        str(tape),
        "--status-port",
        "0",
    )
    syncer = processes.syncer(*SLOW, *flags)
    return syncer, syncer.stderr.wait_for(r"serving url=(http://\S+/)$").group(1), tape


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Learners that end with the test, however it ends."""
    with Crew() as made:
        yield made


def state(url: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(get(url + "state.json"))
    return found


def test_the_state_of_a_run(processes: Processes, crew: Crew, tmp_path: Path) -> None:
    syncer, url, tape = served(processes, tmp_path)
    before = state(url)
    assert before["phase"] == "waiting"
    assert "0 of 3 learners are here." in before["warnings"]
    crew.start(f"127.0.0.1:{syncer.port}", 0, 1)
    wait_for(lambda: crew.steps.get(0, 0) >= 8 or bool(crew.errors))
    during = state(url)
    assert during["live"] and during["phase"] == "training"
    assert during["step"] >= 7 and during["rate"] > 0
    assert sorted(during["fragments"])[-1] == during["step"]
    first, second = during["learners"]
    assert (first["id"], second["id"]) == (0, 1)
    assert first["state"] == "ready" and first["rate"] > 0 and first["staleness"] is not None
    assert during["checkpoint"]["step"] >= 5
    assert [bar["step"] for bar in during["rounds"]] == sorted(bar["step"] for bar in during["rounds"])
    assert any("joined" in event["text"] for event in during["events"])
    crew.leave(1)
    wait_for(lambda: state(url)["learners"][1]["state"] == "away")
    assert any("Learner 1 is away" in text for text in state(url)["warnings"])
    crew.leave(0)
    syncer.kill()
    page = tmp_path / "page.html"
    assert yeto_tape(["report", str(tape), "--output", str(page)]) == 0
    assert '"live": false' in page.read_text()
    assert "http://" not in page.read_text().replace("http://www.w3.org/2000/svg", "")


@pytest.mark.full
def test_in_a_browser(processes: Processes, crew: Crew, tmp_path: Path) -> None:
    syncer, url, tape = served(processes, tmp_path)
    with Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.state == 'live'")
        assert "0 of 3 learners are here." in browser.text()
        crew.start(f"127.0.0.1:{syncer.port}", 0, 1)
        browser.until("Number(document.body.dataset.step) >= 12")
        step = int(browser.evaluate("document.body.dataset.step"))
        browser.until(f"Number(document.body.dataset.step) > {step}")  # it lives
        text = browser.text()
        assert "training" in text and "/ 100000" in text
        assert browser.evaluate("document.querySelectorAll('#learners tr[data-learner]').length") == 2
        assert (
            browser.evaluate("document.querySelector('[data-learner=\"0\"]').innerText").count("ready") == 1
        )
        assert browser.evaluate("document.querySelectorAll('#rounds .round').length") >= 8
        assert browser.evaluate("document.querySelectorAll('#curve-ms polyline').length") == 1
        assert browser.evaluate("document.querySelectorAll('#curve-staleness polyline').length") == 2
        crew.leave(1)
        browser.until("document.querySelector('[data-learner=\"1\"]').innerText.includes('away')")
        browser.until("document.getElementById('warnings').innerText.includes('Learner 1 is away')")
        browser.screenshot(PICTURES / "status.png")
        crew.leave(0)
        # One look may come too late on a busy machine; the page must have come back from that.
        browser.until("document.body.dataset.state == 'live'")
        assert [each for each in browser.problems if not each.endswith("state.json")] == []
        syncer.kill()
        browser.until("document.body.dataset.state == 'lost'")
        assert "the syncer does not answer" in browser.text()
        page = tmp_path / "page.html"
        assert yeto_tape(["report", str(tape), "--output", str(page)]) == 0
        browser.problems.clear()
        browser.open(page.as_uri())
        browser.until("document.body.dataset.step")
        assert browser.evaluate("document.querySelectorAll('#learners tr[data-learner]').length") == 2
        assert "from the event tape" in browser.text()
        browser.screenshot(PICTURES / "report.png")
        assert browser.problems == []


@pytest.mark.full
def test_a_hostile_text_stays_a_text(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    own = "document.body.dataset.owned='1'"
    nasty = f'</script><script>{own}</script><img src=x onerror="{own}">'
    tape.write_text(
        "".join(
            json.dumps(record) + "\n"
            for record in (
                {"event": "learner_joined", "id": 0, "generation": 1, "step": 0, "time": 1.0},
                {"event": "learner_left", "id": 0, "generation": 1, "reason": nasty, "time": 2.0},
                {"event": "run_ended", "step": 0, "code": 1, "message": nasty, "time": 3.0},
            )
        )
    )
    page = tmp_path / "page.html"
    assert yeto_tape(["report", str(tape), "--output", str(page)]) == 0
    with Browser(width=480) as browser:
        browser.open(page.as_uri())
        browser.until("document.body.dataset.step")
        assert nasty in browser.text()
        assert browser.evaluate("document.body.dataset.owned === undefined")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "it does not fit a telephone"
        )
        assert browser.problems == []
