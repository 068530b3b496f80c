"""Progress bars: drawn on a terminal when something takes long, and never elsewhere."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from tests.e2e.learner.rig import Initializer, parameters, running, send_cut, wait_until
from tests.e2e.scripted_syncer import WAIT, Peer
from yeto_learner import progress
from yeto_learner.progress import byte_progress
from yeto_proto._generated import messages as wire
from yeto_proto._generated.messages import Message


def drawers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "yeto-progress"]


def test_a_bar_shows_how_much_is_there_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "REFRESH", 0.01)
    screen = io.StringIO()
    done = [0]
    console = Console(file=screen, force_terminal=True, width=120)
    with byte_progress(True, "initial cut", 4 << 20, lambda: done[0], console):
        wait_until(lambda: "0/4.0 MiB" in screen.getvalue() or "0.0/4.0 MiB" in screen.getvalue())
        done[0] = 3 << 20
        wait_until(lambda: "3.0/4.0 MiB" in screen.getvalue())
        done[0] = 5 << 20  # framing comes on top
        wait_until(lambda: "4.0/4.0 MiB" in screen.getvalue())
    assert "initial cut" in screen.getvalue()
    assert drawers() == []


@pytest.mark.parametrize(("show", "terminal"), [(True, False), (False, True)])
def test_without_a_terminal_or_a_wish_there_is_no_thread(show: bool, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal)
    with byte_progress(show, "initial cut", 1, lambda: 0, console):
        assert drawers() == []
    assert screen.getvalue() == ""


def test_nothing_is_drawn_when_it_is_over_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", WAIT)
    screen = io.StringIO()
    with byte_progress(True, "initial cut", 1, lambda: 1, Console(file=screen, force_terminal=True)):
        assert drawers() == ["yeto-progress"]
    assert (screen.getvalue(), drawers()) == ("", [])


def test_both_cuts_of_a_learner_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "REFRESH", 0.005)
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))

    def hold(title: str) -> None:
        wait_until(lambda: title in screen.getvalue())

    initializer = Initializer()

    def initialize(peer: Peer, message: Message) -> bool:
        hold("initial cut")
        return initializer(peer, message)

    with running(parameters(), initialize) as (made, peer, _):
        finisher = threading.Thread(target=made.finish)
        finisher.start()
        hold("final cut")
        send_cut(made, peer, 9)
        peer.expect(wire.FinalAck)
        peer.send(wire.Shutdown())
        finisher.join(WAIT)
        assert not finisher.is_alive()
    assert drawers() == []
