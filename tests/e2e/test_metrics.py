"""The metrics of a real syncer, as Prometheus would read them, and the endpoint under abuse."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.crew import Crew
from tests.e2e.processes import Processes, Syncer
from tests.e2e.raw import dial
from tests.e2e.test_learner_real_syncer import QUICK, STEPS, Fleet, wait_for
from yeto_syncer.shell.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX

WAIT = 90.0
TRIES = 3
ROOT = Path(__file__).resolve().parents[2]
HOLD = ("--min-round-interval-ms", "50")
"""Rounds slow enough that a test can look at the run while it goes on."""


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Learners that end with the test, however it ends."""
    with Crew() as made:
        yield made


def url_of(syncer: Syncer, path: str) -> str:
    """The address of a page, as the syncer tells it."""
    return syncer.stderr.wait_for(rf"serving url=(http://\S+:\d+){re.escape(path)}$").group(1)


def get(url: str) -> str:
    """The page. A request that this process is too slow to send in time is cut, and sent again."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            return _get(url)
    return _get(url)


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=WAIT) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise ConnectionError(str(error.reason)) from error


class Scrape:
    """One look at the metrics; `scrape[name, label=value]`-like access by `value`."""

    def __init__(self, url: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(get(url))}

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name whose labels hold these."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
        ]
        assert found, f"{name} {labels} is not there"
        return sum(found)


def test_a_run_as_prometheus_sees_it(processes: Processes, crew: Crew, tmp_path: Path) -> None:
    path = str(tmp_path / "state.ckpt")
    # A third learner never comes, so that the run cannot end before the test has seen what it wants to see.
    syncer = processes.syncer(
        *("--learners", "3", "--min-start-learners", "2", "--total-steps", "100000", "--quorum", "2"),
        *("--grace-ms", "0", "--sync-interval-steps", "0", "--checkpoint-every", "2", *HOLD),
        *("--checkpoint-path", path, "--metrics-port", "0"),
    )
    url = url_of(syncer, "/metrics") + "/metrics"
    before = Scrape(url)
    assert before.value("phase", phase="waiting") == 1
    assert before.value("learners_connected") == 0
    with dial(syncer.port) as sock:
        sock.sendall(bytes(100))
        while sock.recv(4096):
            pass
    crew.start(f"127.0.0.1:{syncer.port}", 0, 1)
    wait_for(lambda: crew.steps.get(0, 0) >= 6 or bool(crew.errors))
    during = Scrape(url)
    assert during.value("phase", phase="training") == 1
    assert during.value("global_step") >= 5
    assert during.value("total_steps") == 100000
    assert during.value("learners_connected") == during.value("learners_ready") == 2
    assert during.value("learner_connected", learner="1") == 1
    assert during.value("learner_connections", learner="1") == 1
    assert during.value("learner_step_seconds", learner="0") > 0
    assert during.value("connections_refused_total", reason="BadMagic") == 1
    assert during.value("learners_joined_total") == 2
    pushes = during.value("received_messages_total", type="PUSH_FRAGMENT")
    assert pushes >= 10
    assert during.value("received_bytes_total", type="PUSH_FRAGMENT") > pushes
    assert during.value("sent_bytes_total", type="BCAST_FRAGMENT") > 0
    assert during.value("sent_bytes_total", type="PULL_REQ") > 0
    committed = during.value("rounds_committed_total")
    assert committed == during.value("global_step")
    assert during.value("round_duration_seconds_count") == committed
    assert during.value("commit_duration_seconds_count") == committed
    assert during.value("quorum_wait_seconds_count") == committed
    assert during.value("answer_staleness_versions_count") >= 2 * committed
    assert during.value("checkpoint_duration_seconds_count", kind="periodic") >= 1
    assert during.value("checkpoint_step") >= 2
    assert during.value("checkpoint_age_seconds") >= 0
    assert "process_resident_memory_bytes" in during.families
    crew.leave(1)
    wait_for(lambda: Scrape(url).value("learners_connected") == 1)
    gone = Scrape(url)
    assert gone.value("learner_connected", learner="1") == 0
    assert gone.value("learners_left_total") == 1
    crew.leave(0)
    syncer.kill()


def test_names_follow_the_conventions(processes: Processes) -> None:
    syncer = processes.syncer("--learners", "1", "--total-steps", "1", "--metrics-port", "0")
    families = Scrape(url_of(syncer, "/metrics") + "/metrics").families
    ours = {name for name in families if name.startswith(PREFIX)}
    told = {PREFIX + name for name in (*GAUGES, *HISTOGRAMS, *(name for name, _, _ in COUNTERS.values()))}
    assert ours == told
    for name, family in families.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|milliseconds|minutes|kilobytes|percent)(_|$)", name)
    syncer.kill()


def test_every_counter_of_the_code_is_told() -> None:
    text = "".join(path.read_text() for path in (ROOT / "yeto_syncer").rglob("*.py"))
    used = set(re.findall(r"(?:outbox|self)\.count\(\s*\"([a-z_]+)\"", text))
    used |= set(re.findall(r"counters\.add\(\"([a-z_]+)\"", text))
    assert used == COUNTERS.keys()


def test_off_by_default_and_only_on_loopback(processes: Processes) -> None:
    syncer = processes.syncer(*("--learners", "2", *QUICK))
    fleet = Fleet()
    fleet.start(f"127.0.0.1:{syncer.port}")
    fleet.join()
    assert "serving" not in syncer.finished()
    assert fleet.learners[0].global_step == STEPS
    other = processes.syncer("--learners", "1", "--total-steps", "1", "--metrics-port", "0")
    assert url_of(other, "/metrics").startswith("http://127.0.0.1:")
    other.kill()


def test_a_port_that_is_taken_is_named(processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for name in ("metrics", "status"):
            syncer = processes.syncer_command(
                *("--learners", "1", "--total-steps", "1", "--port", "0", f"--{name}-port", port)
            )
            text = syncer.finished(code=1)
            assert text.startswith(
                f"error: cannot listen on 127.0.0.1:{port}: Address already in use; --{name}-port; "
            )


@pytest.fixture(scope="module")
def idle() -> Iterator[Syncer]:
    """A syncer that waits; nothing that is said to its pages changes it."""
    with Processes() as processes:
        syncer = processes.syncer(
            "--learners", "1", "--total-steps", "1", "--metrics-port", "0", "--status-port", "0"
        )
        yield syncer
        syncer.kill()


class TestEndpoint:
    """Both ports speak the same small HTTP."""

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
            ("GET /metrics?x=y HTTP/1.0\r\nHost: 127.0.0.1:1234\r\n\r\n", 200),
            ("HEAD /metrics HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
            ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
            ("GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
            ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
            ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
            ("GET /metrics HTTP/1.1\r\n\r\n", 403),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 403),
            ("GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
            ("nonsense\r\n\r\n", 400),
            ("\r\n\r\n", 400),
        ],
    )
    def test_answers(self, idle: Syncer, request_: str, status: int) -> None:
        answer = b""
        for _ in range(TRIES):
            with (
                dial(int(url_of(idle, "/metrics").rpartition(":")[2])) as sock,
                contextlib.suppress(ConnectionError),
            ):
                sock.sendall(request_.encode())
                while data := sock.recv(1 << 16):
                    answer += data
            if answer:
                break
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"Content-Security-Policy: default-src 'none'" in head
        length = int(re.search(rb"Content-Length: (\d+)", head).group(1))
        assert len(body) == (0 if request_.startswith("HEAD") else length)

    def test_who_says_nothing_or_too_much_is_cut_and_others_are_served(self, idle: Syncer) -> None:
        url = url_of(idle, "/metrics")
        port = int(url.rpartition(":")[2])
        silent = [dial(port) for _ in range(20)]
        with dial(port) as wordy:
            try:
                wordy.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000)
                assert wordy.recv(100) == b""
            except (ConnectionResetError, BrokenPipeError):
                pass
        assert "yeto_syncer_phase" in get(url + "/metrics")
        crowd = [dial(port) for _ in range(60)]
        # More than are served at once: the rest is cut at once, and the silent ones when their time is over.
        for sock in silent + crowd:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(100) == b""
            sock.close()
        assert "yeto_syncer_phase" in get(url + "/metrics")

    def test_a_path_that_is_not_there(self, idle: Syncer) -> None:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url_of(idle, "/") + "/secret")
