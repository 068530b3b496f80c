"""The files under site/docs/deploy: read by the programs that they are for, as far as these can be had."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.crash.test_signals_everywhere import container, process_one
from tests.e2e.processes import Processes
from yeto_syncer.shell.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX
from yeto_syncer.shell.settings import ENV_PREFIX, SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "site" / "docs" / "deploy"
FLAGS = {setting.flag for setting in SETTINGS}
VARIABLES = {setting.env for setting in SETTINGS} | {"YETO_ISLAND_HMAC_KEY"}
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".md")


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_flags_and_variables_exist(path: Path) -> None:
    text = path.read_text()
    for command in re.findall(r"\byeto-syncer(?= --)((?:\\\n|[^\n])*)", text):
        for flag in re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", command.partition("#")[0]):
            assert flag in FLAGS | {"--help"}, flag
    for name in re.findall(rf"\b{ENV_PREFIX}[A-Z0-9_]+|\bYETO_ISLAND[A-Z_]+", text):
        assert name in VARIABLES, name


def test_arguments_of_the_stateful_set_exist() -> None:
    [syncer] = [each for each in manifests() if each["kind"] == "StatefulSet"]
    [container] = syncer["spec"]["template"]["spec"]["containers"]
    assert {argument.partition("=")[0] for argument in container["args"]} <= FLAGS
    # The grace of a SIGTERM must cover what the syncer may take for it.
    [timeout] = [setting.default for setting in SETTINGS if setting.name == "shutdown_timeout_s"]
    assert syncer["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > timeout


def told_metrics() -> set[str]:
    told = {PREFIX + name for name in GAUGES}
    told |= {f"{PREFIX}{name}_total" for name, _, _ in COUNTERS.values()}
    return told | {f"{PREFIX}{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}


@pytest.mark.parametrize("name", ["alerts.yaml", "grafana.json"])
def test_metrics_exist(name: str) -> None:
    used = set(re.findall(rf"\b{PREFIX}[a-z_]+", (DEPLOY / name).read_text()))
    assert used and used <= told_metrics()


def test_the_dashboard_is_whole() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers) > 10
    cells = [
        (p["gridPos"]["x"] + dx, p["gridPos"]["y"] + dy)
        for p in board["panels"]
        for dx in range(p["gridPos"]["w"])
        for dy in range(p["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "two panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in board["panels"]:
        assert panel["targets"] and all(target["expr"] for target in panel["targets"])


def test_the_image_runs_as_nobody_in_particular_and_hears_signals() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and line[0].isalpha()]
    last = dict(words)
    assert last["USER"].partition(":")[0] not in ("0", "root")
    assert json.loads(last["ENTRYPOINT"]) == ["yeto-syncer"], "the exec form: no shell between"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert "HEALTHCHECK" in last


@pytest.mark.full
def test_a_syncer_that_is_process_1_hears_sigterm(tmp_path: Path) -> None:
    # What the kernel keeps from PID 1 of a namespace: signals for which it has no handler.
    program = Path(sys.executable).with_name("yeto-syncer")
    with Processes() as processes:
        started = processes.run(
            *container(),
            str(program),
            *("--learners", "1", "--total-steps", "1", "--port", "0"),
        )
        started.stdout.wait_for("^listening on")
        process_one(started.pid).send_signal(signal.SIGTERM)
        assert started.wait() == 0
    assert "stopped before training" in started.stderr.text


@pytest.mark.full
def test_kubernetes_takes_the_manifests() -> None:
    import kubernetes_validate

    documents = manifests()
    assert {document["kind"] for document in documents} == {"Service", "StatefulSet", "Job"}
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)


@pytest.mark.full
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program is not None, "run tests/packaging/install"
    text = (DEPLOY / "yeto-syncer.service").read_text()
    unit = tmp_path / "yeto-syncer.service"
    command = Path(sys.executable).with_name("yeto-syncer")
    unit.write_text(text.replace("/opt/yeto/bin/yeto-syncer", str(command)))
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert {word for word in shlex.split(line) if word.startswith("--")} <= FLAGS


def promtool() -> str:
    found = shutil.which("promtool") or str(ROOT / "build" / "tools" / "usr" / "bin" / "promtool")
    assert Path(found).is_file(), "run tests/packaging/install"
    return found


@pytest.mark.full
def test_prometheus_takes_the_rules_and_they_fire() -> None:
    for command in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts-test.yaml")):
        done = subprocess.run([promtool(), *command], cwd=DEPLOY, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_promtool_finds_nothing_to_say_about_our_metrics(tmp_path: Path) -> None:
    from tests.e2e.test_metrics import get, url_of

    with Processes() as processes:
        syncer = processes.syncer("--learners", "1", "--total-steps", "1", "--metrics-port", "0")
        text = get(url_of(syncer, "/metrics") + "/metrics")
        syncer.kill()
    ours = "".join(line + "\n" for line in text.splitlines() if "process_" not in line)
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=ours, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.full
@pytest.mark.parametrize("name", ["slurm.sbatch"])
def test_bash_takes_the_scripts(name: str) -> None:
    done = subprocess.run(["bash", "-n", DEPLOY / name], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
