"""What the server tells Prometheus. Names follow its conventions: base units, `_total` for sums.

Counters come from `Counters`, gauges from a look at the run when somebody asks, histograms from the records
of the event tape. The documentation is checked against `COUNTERS`, `GAUGES` and `HISTOGRAMS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from yeto_proto._generated.constants import PROTOCOL_VERSION
from yeto_proto._generated.machines import RoundState
from yeto_syncer.tape_file import Record, kind_of

if TYPE_CHECKING:
    from yeto_syncer.shell.counters import Counters
    from yeto_syncer.shell.watch import Watch

PREFIX: Final = "yeto_syncer_"

ROUND_ENDS: Final = (RoundState.COMMITTED, RoundState.DROPPED)

# A gauge beside each histogram would tell when this process has started, which one gauge tells already.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here

COUNTERS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "rounds_committed": ("rounds_committed", "Outer steps that were committed.", ()),
    "attempts_retried": ("attempts_retried", "Rounds that began a new attempt below their quorum.", ()),
    "rounds_dropped": ("rounds_dropped", "Rounds that were given up without a commit.", ()),
    "answers_accepted": ("answers_accepted", "Answers that took their slot in a round.", ()),
    "answers_late": ("answers_late", "Answers kept for the next round of their fragment (--late-carry).", ()),
    "carries_dropped": ("carries_dropped", "Late answers that were not carried after all.", ("reason",)),
    "rejected": ("messages_rejected", "Messages of learners dropped without an answer.", ("reason",)),
    "learners_joined": ("learners_joined", "Connections of learners that were admitted.", ()),
    "learners_left": ("learners_left", "Connections of learners that ended.", ("reason",)),
    "data_streams_closed": ("data_streams_closed", "Data sockets closed for an error on them.", ("reason",)),
    "connections_refused": ("connections_refused", "Connections refused before admission.", ("reason",)),
    "connections_turned_away": (
        "connections_turned_away",
        "Connections closed unheard: their address had failed too often.",
        (),
    ),
    "received_bytes": ("received_bytes", "Bytes of whole messages that learners sent, by type.", ("type",)),
    "received_messages": ("received_messages", "Whole messages that learners sent, by type.", ("type",)),
    "sent_bytes": ("sent_bytes", "Bytes of frames queued for the sockets of learners, by type.", ("type",)),
}
"""Counter of the server: its name for Prometheus without prefix and `_total`, help, labels."""

GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "build_info": ("Version of the server and of the protocol; always 1.", ("version", "protocol")),
    "phase": ("1 for the phase that the run is in.", ("phase",)),
    "global_step": ("Outer steps committed so far.", ()),
    "total_steps": ("Outer steps of the run.", ()),
    "fragment_version": ("Version of each fragment.", ("fragment",)),
    "learners_configured": ("Learner ids of the run, observers included.", ()),
    "learners_connected": ("Learners that are connected now.", ()),
    "learners_ready": ("Learners that a round would capture now.", ()),
    "quorum": ("Answers that let a round close.", ()),
    "learner_connected": ("1 while the learner, which is no observer, is connected.", ("learner",)),
    "learner_connections": ("Connections of the learner that this process admitted.", ("learner",)),
    "learner_step_seconds": ("Estimated time of one inner step.", ("learner",)),
    "learner_quiet_seconds": ("Time since something came from the learner.", ("learner",)),
    "learner_staleness_versions": ("Staleness of the learner's last answer.", ("learner",)),
    "learner_missed_rounds": (
        "Rounds in a row that the learner was asked for and did not answer.",
        ("learner",),
    ),
    "rounds_in_flight": ("Rounds launched and not committed, by state.", ("state",)),
    "oldest_round_age_seconds": ("Time since the launch of the oldest attempt in flight; 0 without one.", ()),
    "final_acks_missing": ("Learners whose FINAL_ACK is waited for.", ()),
    "checkpoint_step": ("Step of the last durable checkpoint of this process.", ()),
    "checkpoint_age_seconds": ("Time since that checkpoint became durable.", ()),
    "connections_open": ("Open sockets of learners and of who wants to be one.", ()),
    "connections_pending": ("Sockets in handshake.", ()),
    "effects_waiting": ("Effects held back by a blocking checkpoint.", ()),
    "send_queue_messages": ("Fragments waiting to be sent, over all learners.", ()),
    "send_queue_control_bytes": ("Bytes of small frames waiting to be sent, over all learners.", ()),
    "checks_in_flight": ("Bulk messages under check.", ()),
}
"""Gauges without their prefix: help, labels."""

SECONDS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)
VERSIONS: Final = (0, 1, 2, 3, 5, 8, 13, 21, 50)

HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[str, ...], tuple[float, ...]]]] = {
    "round_duration_seconds": ("From the launch of an attempt to the end of its commit.", (), SECONDS),
    "quorum_wait_seconds": ("From the launch of an attempt to its quorum.", (), SECONDS),
    "grace_wait_seconds": ("Waited for more answers after the quorum.", (), SECONDS),
    "commit_duration_seconds": (
        "Merge, commit, per-round checkpoint, queuing of the broadcast.",
        (),
        SECONDS,
    ),
    "answer_staleness_versions": ("Versions that the base of a merged answer was behind.", (), VERSIONS),
    "checkpoint_duration_seconds": (
        "From the decision to write a checkpoint until it is durable.",
        ("kind",),
        SECONDS,
    ),
}
"""Histograms without their prefix: help, labels, buckets."""

IN_FLIGHT: Final = tuple(state.value for state in RoundState if state not in ROUND_ENDS)

_SPANS: Final = {
    "ms": "round_duration_seconds",
    "quorum_ms": "quorum_wait_seconds",
    "grace_waited_ms": "grace_wait_seconds",
    "sync_ms": "commit_duration_seconds",
}


class Metrics(Collector):
    """One registry of its own, so that nothing else in the process shows up."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._release = version("yeto")  # of what runs, also when another one is installed meanwhile
        self._watch: Watch | None = None
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self._registry)
            for name, (text, labels, buckets) in HISTOGRAMS.items()
        }
        ProcessCollector(registry=self._registry)

    def connect(self, watch: Watch) -> None:
        """Say what the gauges look at; before the first `exposition`."""
        self._watch = watch
        self._registry.register(self)

    def exposition(self) -> bytes:
        """All of it in the text format."""
        return generate_latest(self._registry)

    def record(self, record: Record) -> None:
        """Observe a record of the tape."""
        if kind_of(record) != "commit":
            return
        for key, name in _SPANS.items():
            if record[key] is not None:
                self._histograms[name].observe(record[key] / 1000)
        for answer in record["responders"]:
            self._histograms["answer_staleness_versions"].observe(answer["staleness"])

    def saved(self, kind: str, seconds: float) -> None:
        """Observe a checkpoint."""
        self._histograms["checkpoint_duration_seconds"].labels(kind).observe(seconds)

    def describe(self) -> Iterator[Metric]:
        """Nothing before anybody asks: the names are in the tables."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Counters and gauges as they stand."""
        yield from self._sums()
        yield from self._levels()

    def _sums(self) -> Iterator[Metric]:
        families = {
            key: CounterMetricFamily(PREFIX + name, text, labels=labels)
            for key, (name, text, labels) in COUNTERS.items()
        }
        seen = set()
        for key, labels, amount in self._counters.items():
            families[key].add_metric([value for _, value in labels], amount)
            seen.add(key)
        for key, (_, _, names) in COUNTERS.items():
            if key not in seen and not names:
                families[key].add_metric([], 0)
            yield families[key]

    def _levels(self) -> Iterator[Metric]:
        assert self._watch is not None
        families = {
            name: GaugeMetricFamily(PREFIX + name, text, labels=labels)
            for name, (text, labels) in GAUGES.items()
        }

        def put(name: str, value: float, *labels: object) -> None:
            families[name].add_metric([str(label) for label in labels], value)

        run, depths, board = self._watch.view(), self._watch.depths(), self._watch.board
        put("build_info", 1, self._release, PROTOCOL_VERSION)
        put("phase", 1, run.phase)
        put("global_step", run.step)
        put("total_steps", run.total_steps)
        put("learners_configured", run.learners)
        put("learners_connected", len(run.connections))
        put("learners_ready", sum(each.state == "ready" and not each.observer for each in run.connections))
        put("quorum", run.quorum)
        for fragment, number in enumerate(run.versions):
            if number is not None:
                put("fragment_version", number, fragment)
        connected = {each.learner_id for each in run.connections}
        for learner in sorted((connected | board.learners.keys()) - set(run.observers)):
            put("learner_connected", float(learner in connected), learner)
        for each in run.connections:
            put("learner_quiet_seconds", each.quiet_s, each.learner_id)
            if each.step_s is not None:
                put("learner_step_seconds", each.step_s, each.learner_id)
        for learner, row in sorted(board.learners.items()):
            put("learner_connections", row.joins, learner)
            put("learner_missed_rounds", row.missed_in_a_row, learner)
            if row.staleness is not None:
                put("learner_staleness_versions", row.staleness, learner)
        states = [each.state for each in run.rounds]
        for state in IN_FLIGHT:
            put("rounds_in_flight", states.count(state), state)
        put("oldest_round_age_seconds", max((each.age_s for each in run.rounds), default=0.0))
        put("final_acks_missing", len(run.acks_missing))
        saved = self._watch.saved_at
        if saved is not None:
            put("checkpoint_step", saved.step)
            put("checkpoint_age_seconds", saved.age_s)
        put("connections_open", depths.connections)
        put("connections_pending", depths.pending)
        put("effects_waiting", depths.effects)
        put("send_queue_messages", depths.bulk_messages)
        put("send_queue_control_bytes", depths.control_bytes)
        put("checks_in_flight", depths.checks)
        yield from families.values()
