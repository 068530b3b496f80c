"""The examples of the documentation, run as its readers run them, with a real syncer."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.e2e.processes import Processes, wait_until
from tests.torch.rig import EXAMPLES, SLOW, script, succeeded, torchrun
from yeto_proto.files import read_snapshot

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

FLAGS = ("--quorum", "2", "--grace-ms", "20000")


def distance(text: str) -> float:
    found = re.search(r"distance from the truth: (\d\.\d{4})", text)
    assert found, text
    return float(found.group(1))


def test_the_torch_example(processes: Processes) -> None:
    syncer = processes.syncer("--learners", "2", "--total-steps", "40", "--sync-interval-steps", "50", *FLAGS)
    path = str(EXAMPLES / "torch_learner.py")
    learners = [script(processes, path, f"127.0.0.1:{syncer.port}", str(number)) for number in range(2)]
    texts = {succeeded(learner) for learner in learners}
    syncer.finished(0, SLOW)
    assert len(texts) == 1, "every learner ends with the same parameters"
    assert distance(texts.pop()) < 0.1


def test_the_fsdp_example(processes: Processes) -> None:
    syncer = processes.syncer("--learners", "1", "--total-steps", "20", "--sync-interval-steps", "20")
    path = str(EXAMPLES / "torch_fsdp.py")
    text = succeeded(torchrun(processes, 2, path, f"127.0.0.1:{syncer.port}", "0"))
    syncer.finished(0, SLOW)
    assert re.search(r"^\d+ local steps, global step 20, loss \d", text), text


def test_the_accelerate_example_with_learners_of_one_and_of_two_processes(processes: Processes) -> None:
    syncer = processes.syncer("--learners", "2", "--total-steps", "40", "--sync-interval-steps", "50", *FLAGS)
    path, address = str(EXAMPLES / "accelerate_learner.py"), f"127.0.0.1:{syncer.port}"
    learners = [script(processes, path, address, "0"), torchrun(processes, 2, path, address, "1")]
    texts = {succeeded(learner).strip() for learner in learners}
    syncer.finished(0, SLOW)
    assert len(texts) == 1, "every learner ends with the same parameters"
    assert distance(texts.pop()) < 0.1


def test_the_trainer_example(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> None:
    syncer = processes.syncer("--learners", "2", "--total-steps", "20", "--sync-interval-steps", "10", *FLAGS)
    path, address = str(EXAMPLES / "hf_trainer.py"), f"127.0.0.1:{syncer.port}"
    folders = [tmp_path_factory.mktemp(f"out{number}") for number in range(2)]
    learners = [
        script(processes, path, address, str(number), str(folder)) for number, folder in enumerate(folders)
    ]
    checksums = {re.findall(r"^checksum .*$", succeeded(learner), re.M)[0] for learner in learners}
    syncer.finished(0, SLOW)
    assert len(checksums) == 1, "every learner ends with the same parameters"
    saved = {(folder / "model.safetensors").read_bytes() for folder in folders}
    assert len(saved) == 1, "save_model() after train() writes the final parameters"


ALONE = ("--learners", "1", "--total-steps", "10", "--sync-interval-steps", "10")


@pytest.mark.parametrize(
    ("name", "ranks", "said"),
    [
        ("from_torchft", 1, r"^finished at outer step 10$"),
        ("from_opendiloco", 1, r"^finished at outer step 10$"),
        ("from_ddp", 2, r"^finished at outer step 10$"),
        ("lora_learner", 1, r"^1024 of 29056 parameters took part$"),
    ],
)
def test_the_small_examples(processes: Processes, name: str, ranks: int, said: str) -> None:
    syncer = processes.syncer(*ALONE)
    arguments = (str(EXAMPLES / f"{name}.py"), f"127.0.0.1:{syncer.port}", "0")
    learner = script(processes, *arguments) if ranks == 1 else torchrun(processes, ranks, *arguments)
    text = succeeded(learner)
    syncer.finished(0, SLOW)
    assert re.search(said, text, re.M), text


def test_the_example_that_resumes(processes: Processes, tmp_path: Path) -> None:
    # The run has no end before the learner was killed, however late that is.
    kept, checkpoint = tmp_path / "kept", tmp_path / "run.ckpt"
    flags = ("--learners", "1", "--sync-interval-steps", "10", "--checkpoint-path", str(checkpoint))
    syncer = processes.syncer(*flags, "--total-steps", "1000000")
    program = str(EXAMPLES / "resume_learner.py")
    first = script(processes, program, f"127.0.0.1:{syncer.port}", "0", str(kept))
    wait_until(lambda: (kept / "state.pt").exists(), "the first state", SLOW)
    first.kill()
    syncer.signal(signal.SIGTERM)
    syncer.finished(0, SLOW)
    total = read_snapshot(checkpoint).global_step + 10
    syncer = processes.syncer(*flags, "--total-steps", str(total), "--resume")
    second = script(processes, program, f"127.0.0.1:{syncer.port}", "0", str(kept))
    text = succeeded(second)
    syncer.finished(0, SLOW)
    resumed = re.search(r"resumed at local step (\d+)", second.stderr.text)
    assert resumed, second.stderr.text
    assert int(resumed.group(1)) % 20 == 0
    assert f"rebuilt for local step {resumed.group(1)}" in second.stderr.text
    found = re.search(r"^(\d+) local steps, rate (\S+)$", text, re.M)
    assert found, text
    steps = int(found.group(1))
    assert steps > int(resumed.group(1)) >= 20
    assert float(found.group(2)) == pytest.approx(0.01 * (1 - 0.9 * min(steps, 2000) / 2000), rel=1e-4)
