"""What a case says about order and time: `label`, `after` and `within`."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from codegen.bind import bind
from codegen.conform import passages, scenario, sessions
from codegen.faults import SpecFault, Where
from codegen.load import parse
from codegen.parts import load
from tests.unit.wire_samples import session
from yeto_proto._generated.messages import FinalAck, Shutdown
from yeto_proto._generated.types import Role
from yeto_proto.conform import groups, links, runner, trace
from yeto_proto.conform.links import SLACK_S, Links
from yeto_proto.conform.player import Player
from yeto_proto.conform.verdict import FailError, Result
from yeto_proto.writer import frame

CORPUS = {each.id: each for each in trace.load_corpus()}
HEAD = CORPUS["run-two-steps"].head
ACK = b"".join(bytes(part) for part in frame(FinalAck(2)))
SENT = {"do": "frame", "on": "a.0", "from": "learner", "frame": "FINAL_ACK", "fields": {}, "wire": ACK.hex()}
REPLY = {"do": "frame", "on": "a", "from": "syncer", "frame": "SHUTDOWN", "fields": {}}
EXIT = {"do": "exit", "code": 0}


# -- in a trace


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([{**SENT, "after": ["x"]}], "2: after: belongs to a frame that the side under test sends"),
        ([{**EXIT, "after": ["x"]}], "2: after: belongs to a frame"),
        ([{**REPLY, "after": "x"}], "2: after: must be a list of labels"),
        ([{**REPLY, "after": [1]}], "2: after: must be a list of labels"),
        ([{**REPLY, "after": ["x"]}], "2: after: no step before this one has the label 'x'"),
        ([{**REPLY, "after": ["x"], "label": "x"}], "2: after: no step before this one"),
        ([{**REPLY, "after": ["x"]}, {**SENT, "label": "x"}], "2: after: no step before this one"),
        ([{**SENT, "label": ""}], "2: label: must be text"),
        ([{**SENT, "label": 7}], "2: label: must be text"),
        ([{**EXIT, "label": "x"}], "2: label: belongs to a frame, or to bytes"),
        ([{**SENT, "label": "x"}, {**SENT, "label": "x"}], "3: label: an earlier step has the label 'x' too"),
        ([{**SENT, "within": 20}], "2: within: belongs to a step that waits"),
        (
            [{"do": "end", "on": "a", "by": "learner", "within": 20}],
            "2: within: belongs to a step that waits",
        ),
        ([{"do": "none", "on": "a", "frame": "SHUTDOWN", "within": 20}], "2: within: belongs to a step"),
        ([{"do": "open", "on": "a.0", "within": 20}], "2: within: belongs to a step that waits"),
        ([{**REPLY, "within": 0}], "2: within: must be a number of seconds above 0"),
        ([{**REPLY, "within": "20"}], "2: within: must be a number of seconds above 0"),
        ([{**REPLY, "within": True}], "2: within: must be a number of seconds above 0"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_line(tmp_path, steps, says):
    path = tmp_path / "case.jsonl"
    trace.save(trace.Trace(HEAD, tuple(steps)), path)
    with pytest.raises(trace.BadTraceError) as refused:
        trace.load(path)
    assert f"{path}:{says}" in str(refused.value)


def test_infinite_time_is_no_bound(tmp_path):
    path = tmp_path / "case.jsonl"
    path.write_text(f'{json.dumps(HEAD)}\n{{"do": "exit", "code": 0, "within": 1e999}}\n')
    with pytest.raises(trace.BadTraceError, match="within: must be a number"):
        trace.load(path)


def test_right_declarations_are_read(tmp_path):
    path = tmp_path / "case.jsonl"
    steps = ({**SENT, "label": "x"}, {**REPLY, "after": ["x"], "within": 20}, {**EXIT, "within": 0.5})
    trace.save(trace.Trace(HEAD, steps), path)
    found = trace.load(path)
    assert links.watched(found.steps) == {"x"}


def test_a_case_of_a_codec_has_neither(tmp_path):
    path = tmp_path / "case.jsonl"
    step = {"do": "ask", "request": {}, "answer": {}}
    for key in ({"label": "x"}, {"within": 20}):
        trace.save(trace.Trace({**HEAD, "role": "codec"}, ({**step, **key},)), path)
        with pytest.raises(trace.BadTraceError, match="belongs to"):
            trace.load(path)


# -- in the specification


@pytest.fixture(scope="module")
def spec():
    return load(Path(__file__).parents[2] / "spec")


def lines(spec, *steps):
    text = f"id: x\nrule: x\nexpect: accept\nsteps: [{', '.join(steps)}]\n"
    case = bind(scenario.Scenario, parse(text, "case.yaml"))
    return passages.Script(spec, sessions.load(spec.root)["two"], case, "syncer").run()


JOIN = "join a: {}"
LABELLED = "send a FINAL_ACK: {label: the ack}"


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["get a SHUTDOWN: {after: nothing}"], "no step before this one has the label 'nothing'"),
        (["get a SHUTDOWN: {after: the ack}", LABELLED], "no step before this one has the label 'the ack'"),
        ([LABELLED, "send a HEARTBEAT: {after: the ack}"], "after belongs to get, not to send"),
        ([LABELLED, "exit: {code: 0, after: the ack}"], "after belongs to get, not to exit"),
        ([LABELLED], "no step is after the one with the label 'the ack'"),
        ([LABELLED, LABELLED], "an earlier step has the label 'the ack' too"),
        (["send a FINAL_ACK: {label: 1}"], "label must be text"),
        (["exit: {code: 0, label: x}"], "label belongs to send"),
        (["get a SHUTDOWN: {within: 2}"], "within must be 10 to 120 seconds"),
        (["get a SHUTDOWN: {within: 1000}"], "within must be 10 to 120 seconds"),
        (["get a SHUTDOWN: {within: true}"], "within must be 10 to 120 seconds"),
        (["send a HEARTBEAT: {within: 20}"], "within belongs to get"),
        (["none a SHUTDOWN: {within: 20}"], "within belongs to get"),
    ],
)
def test_the_generator_refuses_a_wrong_declaration(spec, steps, says):
    with pytest.raises(SpecFault) as refused:
        lines(spec, JOIN, *steps)
    assert says in str(refused.value)
    assert isinstance(refused.value.where, Where)


def test_the_generator_writes_them(spec):
    got = lines(
        spec, JOIN, LABELLED, "get a SHUTDOWN: {after: the ack, within: 20}", "exit: {code: 0, within: 30}"
    )
    assert got[-3]["label"] == "the ack"
    assert (got[-2]["after"], got[-2]["within"]) == (["the ack"], 20)
    assert got[-1] == {"do": "exit", "code": 0, "within": 30}


def test_the_corpus_uses_both():
    using = {
        key: [each for each in CORPUS.values() if any(key in step for step in each.steps)]
        for key in ("after", "within")
    }
    assert len(using["after"]) >= 6
    assert len(using["within"]) >= 4
    assert (
        {each.role for each in using["after"]}
        == {each.role for each in using["within"]}
        == {"server", "client"}
    )
    assert min(step["within"] for each in using["within"] for step in each.steps if "within" in step) >= 10


# -- order


def test_what_was_there_before_a_message_was_sent_is_early():
    order = Links()
    before = order.arrived(Shutdown(), 1.0)
    order.sent("x")
    after = order.arrived(Shutdown(), 1.0)
    assert order.early(before, ["x"], one_socket=False) == "x"
    assert order.early(after, ["x"], one_socket=False) is None
    assert order.early(after, ["x", "never sent"], one_socket=False) == "never sent"


def test_on_one_socket_the_order_of_two_replies_is_exact():
    order, link = Links(), object()
    first, second = order.arrived(Shutdown(), 1.0, link), order.arrived(Shutdown(), 1.0, link)
    order.came("second", second)
    order.came("first", first)
    assert order.early(first, ["second"], one_socket=True) == "second"
    assert order.early(second, ["first"], one_socket=True) is None


@pytest.mark.parametrize(("apart", "early"), [(0.5 * SLACK_S, None), (1.5 * SLACK_S, "other")])
def test_on_two_sockets_a_moment_is_no_order(apart, early):
    order = Links()
    first = order.arrived(Shutdown(), 1.0, object())
    order.came("other", order.arrived(Shutdown(), 1.0 + apart, object()))
    assert order.early(first, ["other"], one_socket=True) == early


class Learner(Player):
    """Plays a learner against a port of the test."""

    played = "learner"
    role = Role.LEARNER
    port = 0

    def open(self, step):
        self.wire.dial("a", 0, self.port)


@pytest.fixture
def against():
    """Play steps against a peer that sends SHUTDOWN before or after it has read the FINAL_ACK."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)

        def play(cut, *, early):
            steps = (
                {"do": "open", "on": "a.0"},
                {**SENT, "label": "the ack"},
                {**REPLY, "after": ["the ack"], "within": 60},
            )

            def peer():
                sock, _ = server.accept()
                with sock:
                    sock.settimeout(60)
                    if early:
                        sock.sendall(b"".join(bytes(part) for part in frame(Shutdown())))
                    got = b""
                    while len(got) < len(ACK):
                        got += sock.recv(4096)
                    if not early:
                        sock.sendall(b"".join(bytes(part) for part in frame(Shutdown())))
                    done.wait(60)

            done = threading.Event()
            thread = threading.Thread(target=peer, daemon=True)
            thread.start()
            found = trace.Trace(HEAD, steps)
            player = Learner(found, Result(found, cut=cut), Path(), 60.0)
            player.port = server.getsockname()[1]
            try:
                player.play()
            finally:
                done.set()
                player.close()
                thread.join(60)

        yield play


@pytest.mark.parametrize("cut", ["recorded", "coalesced", "fields", "bytes"])
def test_a_reply_that_comes_too_early_fails_with_every_cut(against, cut):
    against(cut, early=False)
    with pytest.raises(FailError, match="SHUTDOWN of a came before 'the ack'"):
        against(cut, early=True)


# -- time


@pytest.fixture
def player():
    made = Learner(CORPUS["run-two-steps"], Result(CORPUS["run-two-steps"]), Path(), 20.0)
    yield made
    made.close()


def test_the_case_gives_more_time_and_never_less(player):
    assert player.limit({}) == 20.0
    assert player.limit({"within": 30}) == 30
    assert player.limit({"within": 10}) == 20.0
    player.longest = 8.0
    assert player.limit({"within": 30}) == 8.0


def test_what_comes_late_fails_although_the_runner_waited_for_it(player):
    player.in_time({"within": 10}, "it", began=5.0, when=14.9)
    player.in_time({}, "it", began=5.0, when=1000.0)
    with pytest.raises(FailError, match=r"it came after 11\.0 s, and the case says within 10 s"):
        player.in_time({"within": 10}, "it", began=5.0, when=16.0)


def test_time_in_which_the_runner_is_held_up_does_not_count(monkeypatch):
    wire = groups.Wire(Role.LEARNER, session(4), "recorded", lambda line: None)
    now, waits = [0.0], []

    def select(timeout):
        now[0] += 50.0 if not waits else timeout
        waits.append(timeout)
        return []

    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(wire._selector, "select", select)
    assert not wire.holds(lambda: False, 1.0)
    assert sum(waits) >= 1.0
    assert wire.clock() < 2.0
    wire.close_all()


def test_mutants_get_no_more_time_than_the_runner_has():
    assert runner.quick(runner.Options(timeout=8.0)).longest == 8.0


# -- cuts


def cuts(case):
    return runner._cuts(CORPUS[case], runner.Options(cuts=("recorded", "coalesced")))


@pytest.mark.parametrize(
    ("case", "both"),
    [
        ("run-two-steps", True),
        ("learner-run-two-steps", True),
        ("join-learner-u32-max", False),
        ("chunks-in-order", True),
        ("chunks-one", False),
        ("pull-smallest", False),
    ],
)
def test_a_case_is_coalesced_where_that_gives_other_writes(case, both):
    assert list(cuts(case)) == (["recorded", "coalesced"] if both else ["recorded"])


def test_one_cut_alone_is_played_of_every_case():
    assert list(runner._cuts(CORPUS["join-learner-u32-max"], runner.Options(cuts=("coalesced",)))) == [
        "coalesced"
    ]
