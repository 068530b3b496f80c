"""The planner's formulas beside the code that they speak of, and its command line."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from yeto_proto import build_layout, dtypes
from yeto_proto._generated.messages import BcastFragment, FinalFragment, InitParams, Message, PushFragment
from yeto_proto._generated.types import Dtype, IsoBackend, MergeMode
from yeto_proto.chunks import slices
from yeto_proto.files import FragmentState, LedgerEntry, Snapshot, SnapshotVersion, write_to
from yeto_syncer.cli import main
from yeto_syncer.planner import model, rates, units
from yeto_syncer.planner.model import Need, Rates

FAST = Rates(merge=1e9, encode=1e10, disk=1e9, socket=1e9)
NEED = Need(
    numels=(1000, 1000),
    learners=4,
    dtype=Dtype.BF16,
    link=1e9,
    learner_link=1e9,
    pipeline=2,
    on_arrival=False,
    checkpoint_every=8,
    background=False,
    interval=24.0,
    step_seconds=None,
)
RATES = (
    *("--merge-rate", "4GB/s", "--encode-rate", "9GB/s"),
    *("--disk-rate", "1.2GB/s", "--socket-rate", "1.5GB/s"),
)
SEVEN = ("--parameters", "7B", "--learners", "4", "--link", "10Gbit")


def sent(message: Message) -> int:
    """Bytes of a message in chunks."""
    return sum(len(buffer) for chunk in slices(message, 0) for buffer in chunk)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("numel", [1, 1000, 3_000_000])
def test_bytes_on_the_wire_are_those_that_are_sent(dtype: Dtype, numel: int) -> None:
    values = np.zeros(numel, np.float32)
    bulk = dtypes.encode(Dtype.BF16 if dtype is Dtype.Q4 else dtype, values)
    push = PushFragment(1, 0, 1, 1, 0, 1, 1, 1, dtypes.encode(dtype, values))
    assert model.push_wire(dtype, numel) == sent(push)
    assert model.broadcast_wire(dtype, numel) == sent(BcastFragment(0, 1, bulk))
    assert model.init_wire(dtype, (numel,)) == sent(InitParams(0, bulk))
    assert model.final_wire((numel,)) == sent(FinalFragment(0, 1, dtypes.encode(Dtype.F32, values)))


def test_the_checkpoint_has_the_length_of_the_file() -> None:
    fragments = [FragmentState(0, np.zeros(n, np.float32), np.zeros(n, np.float32)) for n in (7, 9)]
    ledger = {number: LedgerEntry(0, 0, 0) for number in range(3)}
    snapshot = Snapshot(SnapshotVersion.V3, IsoBackend.SCALAR, bytes(32), 0, fragments, ledger, bytes(32))
    file = io.BytesIO()
    write_to(file, snapshot)
    assert model.checkpoint_bytes((7, 9), 3) == len(file.getvalue())


def test_fragments_are_even() -> None:
    assert model.even_fragments(10, 4) == (3, 3, 2, 2)
    assert model.even_fragments(8, 4) == (2, 2, 2, 2)


def test_what_binds_is_the_slowest_part() -> None:
    slow_link = model.plan(replace(NEED, link=1e3), FAST)
    assert slow_link.binds == "answers into the syncer"
    assert slow_link.period == pytest.approx(4 * model.push_wire(Dtype.BF16, 1000) / 1e3, rel=0.01)
    assert model.plan(NEED, replace(FAST, merge=1e3)).binds == "the merge"
    assert model.plan(replace(NEED, learner_link=1e2), FAST).binds == "an answer out of a learner"
    assert model.plan(NEED, replace(FAST, disk=1e2)).binds == "the checkpoint"
    training = model.plan(replace(NEED, step_seconds=10.0), FAST)
    assert training.binds.startswith("training")
    assert training.period == 10.0 * 24 / 2


def test_parts_add_up_without_a_pipeline_and_overlap_with_one() -> None:
    one = model.plan(replace(NEED, pipeline=1), FAST)
    assert one.period == pytest.approx(sum(item.value for item in one.round))
    two = model.plan(replace(NEED, background=True), FAST)
    assert two.period == max(item.value for item in two.round)


def test_a_checkpoint_in_the_foreground_adds_to_the_period_and_is_noted() -> None:
    slow_disk = replace(FAST, disk=1e5)
    ahead, beside = model.plan(NEED, slow_disk), model.plan(replace(NEED, background=True), slow_disk)
    assert ahead.period > beside.period
    assert any("--background-checkpoint" in note for note in ahead.notes)
    assert beside.memory_total - ahead.memory_total == 8 * 2000
    assert model.plan(replace(NEED, checkpoint_every=0), slow_disk).period < beside.period


def test_rounds_that_cannot_keep_up_are_noted() -> None:
    plan = model.plan(replace(NEED, step_seconds=1e-9), FAST)
    assert plan.step_interval == pytest.approx(12e-9)
    assert any("cannot keep up" in note for note in plan.notes)
    wide = model.plan(replace(NEED, pipeline=3), FAST)
    assert any("only 2 rounds" in note for note in wide.notes)


def test_streaming_sums_take_the_place_of_answers() -> None:
    need = replace(NEED, numels=(1_000_000,) * 4, dtype=Dtype.F32)
    at_close, streaming = model.plan(need, FAST), model.plan(replace(need, on_arrival=True), FAST)
    # Two rounds with four answers each, against one sum and one answer at a time each.
    assert at_close.memory_total - streaming.memory_total == 2 * 4 * 4_000_000 - 2 * 2 * 4_000_000


@pytest.mark.parametrize(
    ("text", "value"),
    [("50Gbit", 6.25e9), ("1.2GB/s", 1.2e9), ("800MiB/s", 800 * 2**20), ("8bit", 1.0), ("10Gbps", 1.25e9)],
)
def test_rates_with_units(text: str, value: float) -> None:
    assert units.rate(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("120e9", 120 * 10**9), ("7B", 7 * 10**9), ("64M", 64 * 10**6), ("5", 5)]
)
def test_counts_with_units(text: str, value: int) -> None:
    assert units.count(text) == value


@pytest.mark.parametrize(
    ("value", "shown"), [(0.25, "250 ms"), (90, "90 s"), (483, "8 min 3 s"), (9660, "2 h 41 min")]
)
def test_times_are_told_in_units_of_people(value: float, shown: str) -> None:
    assert units.show_seconds(value) == shown


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--parameters", "1.5", "--learners", "2", "--link", "1Gbit"], "--parameters"),
        (["--parameters", "many", "--learners", "2", "--link", "1Gbit"], "--parameters"),
        (["--parameters", "1e999", "--learners", "2", "--link", "1Gbit"], "--parameters"),
        (["--parameters", "7B", "--learners", "0", "--link", "1Gbit"], "--learners"),
        (["--parameters", "7B", "--learners", "2", "--link", "fast"], "--link"),
        (["--parameters", "7B", "--learners", "2", "--link", "0Gbit"], "--link"),
        (["--parameters", "7B", "--learners", "2"], "--link"),
        (["--learners", "2", "--link", "1Gbit"], "--parameters"),
        (["--parameters", "3", "--learners", "2", "--link", "1Gbit", "--fragments", "4"], "--fragments"),
        ([*SEVEN, "--pipeline", "0"], "--pipeline"),
        ([*SEVEN, "--fold", "never"], "--fold"),
        ([*SEVEN, "--step-seconds", "0"], "--step-seconds"),
        ([*SEVEN, "--step-seconds", "1e308"], "--step-seconds"),
        ([*SEVEN, "--sync-interval-steps", "1e300"], "--sync"),
        ([*SEVEN, "--learner-link", "1e-300bit"], "--learner-link"),
        (["--parameters", "1e300", "--learners", "2", "--link", "1Gbit"], "--parameters"),
        (["--parameters", "1e18", "--learners", "2", "--link", "1Gbit", "--fragments", "1e9"], "no room"),
        ([*SEVEN, "--sync-interval-steps", "nan"], "--sync"),
        (["--layout", "x", "--fragments", "4", "--learners", "2", "--link", "1Gbit"], "--fragments"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", *flags])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [None, b"[]", b"\xff", b'{"fragments": []}'])
def test_a_layout_that_cannot_be_used_is_one_line(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "layout.json"
    if content is not None:
        bad.write_bytes(content)
    assert main(["plan", "--layout", str(bad), "--learners", "2", "--link", "1Gbit", *RATES]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(bad) in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing")
    rates = ("--merge-rate", "4GB/s", "--encode-rate", "9GB/s", "--socket-rate", "1GB/s")
    assert main(["plan", *SEVEN, *rates, "--folder", missing]) == 1
    error = capsys.readouterr().err
    assert missing in error
    assert error.count("\n") == 1


def test_a_layout_file_gives_its_own_fragments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layout.json"
    layout = build_layout({"a": (10, 4), "b": 7, "c": 5}, 3)
    path.write_text(layout.to_json())
    assert main(["plan", "--layout", str(path), "--learners", "2", "--link", "1Gbit", *RATES, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["parameters"], document["fragments"]) == (52, 3)
    sizes = {item["name"]: item["value"] for item in document["disk"]}
    assert sizes["checkpoint"] == model.checkpoint_bytes([each.numel for each in layout.fragments], 2)


def test_a_layout_with_iso_fragments_says_what_is_not_in_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layout.json"
    flags = ["plan", "--layout", str(path), "--learners", "2", "--link", "1Gbit", *RATES]
    for mode, told in (("iso", True), ("rda", False)):
        path.write_text(build_layout({"a": (10, 4), "b": (3, 3)}, 2, matrix_merge=mode).to_json())
        assert main(flags) == 0
        out = capsys.readouterr().out
        assert ("note: 2 of the fragments are merged by iso" in out) is told


def test_a_bar_shows_what_is_measured_and_only_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("merge", "encode", "disk", "socket"):
        monkeypatch.setattr(rates, f"{name}_rate", lambda *_: 1e9)
    assert main(["plan", *SEVEN]) == 0
    plain = capsys.readouterr()
    assert plain.err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["plan", *SEVEN]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain.out and "measuring: " in shown.err


def test_the_figures_of_the_120_billion_parameter_run(capsys: pytest.CaptureFixture[str]) -> None:
    # Revision 2, sections 2 to 4: 966 GB of state, an INIT of 483 GB in 322 s at 1.5 GB/s, a save of 13.7
    # minutes at 1.2 GB/s.
    flags = ["--parameters", "120.75e9", "--fragments", "32", "--learners", "8", "--dtype", "f32"]
    assert main(["plan", *flags, "--link", "50Gbit", *RATES, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    disk = {item["name"]: item["value"] for item in document["disk"]}
    once = {item["name"]: item["value"] for item in document["once"]}
    wire = {item["name"]: item["value"] for item in document["wire"]}
    assert disk["checkpoint"] == pytest.approx(966e9, rel=0.001)
    assert wire["INIT of learner 0"] == pytest.approx(483e9, rel=0.001)
    assert once["INIT"] == pytest.approx(322, rel=0.001)
    assert once["one checkpoint"] == pytest.approx(13.7 * 60, rel=0.03)


def test_what_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SEVEN, "--fragments", "16", *RATES, "--step-seconds", "100ms"]) == 0
    out = capsys.readouterr().out
    assert "7,000,000,000 parameters in 16 fragments, 4 learners, bf16" in out
    assert "what binds: " in out
    assert "together" in out
    assert "Training asks for a round every 150 ms" in out


def test_this_machine_can_be_measured(tmp_path: Path) -> None:
    # Not how fast it is, only that each figure is one.
    found = [
        rates.merge_rate(2, Dtype.BF16, MergeMode.AVG, True, 1),
        rates.encode_rate(Dtype.Q4, 1),
        rates.socket_rate(),
        rates.disk_rate(tmp_path),
    ]
    assert all(math.isfinite(value) and value > 0 for value in found)
    assert math.isinf(rates.encode_rate(Dtype.F32, 1))
    assert not list(tmp_path.iterdir())
