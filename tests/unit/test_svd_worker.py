"""The worker process of the torch-svd backend: frames, statuses, decomposition, and how it ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from yeto_proto._generated.iso_worker import HEADER, MAGIC, REQUEST, TEXT_MAX, VERSION, Header, Status
from yeto_syncer.core.merge import iso
from yeto_syncer.svd_worker import Flatten, numpy_backend, serve

F32 = NDArray[np.float32]
MERGE = json.loads((Path(__file__).parents[1] / "vectors" / "merge.json").read_text())["vectors"]
COMMAND = [sys.executable, "-m", "yeto_syncer.svd_worker"]
WAIT_S = 120.0


def request(matrix: F32, number: int = 1, **changes: Any) -> bytes:
    """A good request, with some fields of its header changed."""
    header = Header(MAGIC, VERSION, REQUEST, number, matrix.shape[0], matrix.shape[1], matrix.nbytes)
    return HEADER.pack(*header._replace(**changes)) + matrix.tobytes()


def replies(data: bytes) -> list[tuple[Header, bytes]]:
    """All frames of an output, which must be nothing but frames."""
    found = []
    while data:
        header = Header._make(HEADER.unpack_from(data))
        end = HEADER.size + header.payload_bytes
        assert header.magic == MAGIC and header.version == VERSION and end <= len(data)
        found.append((header, data[HEADER.size : end]))
        data = data[end:]
    return found


def exchange(
    data: bytes, flatten: Flatten | None = None, **limits: int
) -> tuple[int, list[tuple[Header, bytes]]]:
    """Give the input to a worker in this process; its exit code and answers."""
    out = io.BytesIO()
    code = serve(io.BytesIO(data), out, flatten or numpy_backend("cpu"), **limits)
    return code, replies(out.getvalue())


def doubled(matrix: F32) -> F32:
    """A flattening that can be checked by eye."""
    return matrix * np.float32(2)


def raising(error: Exception) -> Flatten:
    def flatten(matrix: F32) -> F32:
        raise error

    return flatten


MATRIX = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


# -- frames --------------------------------------------------------------------------------------------------


def test_the_published_frames() -> None:
    probe, pair = MERGE["iso_probe_request"], MERGE["iso_request_2x2"]
    out = io.BytesIO()
    code = serve(io.BytesIO(bytes.fromhex(probe["hex"] + pair["hex"])), out, numpy_backend("cpu"))
    assert code == 0
    assert out.getvalue().hex() == probe["reply_hex"] + pair["reply_hex"]


def test_an_answer_repeats_id_and_shape_and_holds_the_matrix() -> None:
    code, (one, two) = exchange(request(MATRIX, 7) + request(MATRIX.T.copy(), 2**64 - 1), doubled)
    assert code == 0
    assert one == (Header(MAGIC, VERSION, Status.OK, 7, 2, 3, 24), doubled(MATRIX).tobytes())
    assert two == (Header(MAGIC, VERSION, Status.OK, 2**64 - 1, 3, 2, 24), doubled(MATRIX.T).tobytes())


NAN = np.array([[1, np.nan]], np.float32)
INF = np.array([[1], [-np.inf]], np.float32)
REFUSALS = [
    pytest.param(request(MATRIX, magic=b"YETOISO2"), Status.MALFORMED, id="magic"),
    pytest.param(request(MATRIX, version=2), Status.UNSUPPORTED, id="version"),
    pytest.param(request(MATRIX, code=2), Status.UNSUPPORTED, id="code"),
    pytest.param(request(MATRIX, code=0), Status.UNSUPPORTED, id="status as code"),
    pytest.param(request(MATRIX, rows=0), Status.BAD_SHAPE, id="no rows"),
    pytest.param(request(MATRIX, cols=0), Status.BAD_SHAPE, id="no cols"),
    pytest.param(request(MATRIX, rows=2**63, cols=1), Status.BAD_SHAPE, id="too many values"),
    pytest.param(request(MATRIX, rows=2**62, cols=1), Status.BAD_SHAPE, id="too many bytes"),
    pytest.param(request(MATRIX, rows=2**32, cols=2**32), Status.BAD_SHAPE, id="product of 2^64"),
    pytest.param(request(MATRIX, rows=3), Status.BAD_LENGTH, id="longer matrix"),
    pytest.param(request(MATRIX, rows=1), Status.BAD_LENGTH, id="shorter matrix"),
    pytest.param(request(MATRIX, rows=2**61, cols=1), Status.BAD_LENGTH, id="huge matrix"),
    pytest.param(request(NAN), Status.NON_FINITE_INPUT, id="nan"),
    pytest.param(request(INF), Status.NON_FINITE_INPUT, id="inf"),
]


@pytest.mark.rule("iso_worker.magic.must")
@pytest.mark.rule("iso_worker.version.must")
@pytest.mark.rule("iso_worker.code.must")
@pytest.mark.rule("iso_worker.shape.must")
@pytest.mark.rule("iso_worker.payload.length")
@pytest.mark.rule("iso_worker.payload.finite")
@pytest.mark.parametrize(("data", "status"), REFUSALS)
def test_a_whole_frame_that_is_wrong_is_answered_and_the_worker_goes_on(data: bytes, status: Status) -> None:
    asked = Header._make(HEADER.unpack_from(data))
    code, ((header, text), after) = exchange(data + request(MATRIX, 2), doubled)
    assert code == 0
    assert header.code == status
    assert (header.request_id, header.rows, header.cols) == (1, asked.rows, asked.cols)
    assert text.decode()
    assert after == (Header(MAGIC, VERSION, Status.OK, 2, 2, 3, 24), doubled(MATRIX).tobytes())


@pytest.mark.rule("iso_worker.magic.must")
def test_the_first_broken_rule_decides() -> None:
    wrong = request(NAN, magic=b"noframes", version=9, code=9, rows=0)
    _, [(header, _)] = exchange(wrong)
    assert header.code == Status.MALFORMED
    _, [(header, _)] = exchange(request(NAN, rows=0))
    assert header.code == Status.BAD_SHAPE


@pytest.mark.rule("iso_worker.compute.must")
@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), MemoryError(), np.linalg.LinAlgError("did not converge")]
)
def test_a_decomposition_that_fails_is_answered(error: Exception) -> None:
    code, [(header, text)] = exchange(request(MATRIX), raising(error))
    assert (code, header.code) == (0, Status.COMPUTE_ERROR)
    assert text.decode() == f"{type(error).__name__}: {error}"


@pytest.mark.rule("iso_worker.result.finite")
@pytest.mark.parametrize(
    "matrix",
    [
        pytest.param(np.full((50, 40), 3e38, np.float32), id="the largest"),
        pytest.param(np.eye(4, dtype=np.float32) * np.float32(1e38), id="their sum"),
    ],
)
def test_singular_values_that_overflow_do_not_end_as_zeros(matrix: F32) -> None:
    code, [(header, _)] = exchange(request(matrix))
    assert (code, header.code) == (0, Status.NON_FINITE_OUTPUT)


@pytest.mark.rule("iso_worker.result.finite")
def test_a_result_that_overflows_is_answered() -> None:
    huge = np.full((1, 2), 3e38, np.float32)
    code, [(header, text)] = exchange(request(huge), doubled)
    assert (code, header.code) == (0, Status.NON_FINITE_OUTPUT)
    assert "f32" in text.decode()


def test_a_long_text_is_cut_between_two_characters() -> None:
    _, [(header, text)] = exchange(request(MATRIX), raising(RuntimeError("ä" * TEXT_MAX)))
    assert header.payload_bytes == len(text)
    # "RuntimeError: " has an even number of bytes, as has each character behind it.
    assert len(text) == TEXT_MAX
    _, [(_, text)] = exchange(request(MATRIX), raising(RuntimeError("x" + "ä" * TEXT_MAX)))
    assert len(text) == TEXT_MAX - 1
    assert text.decode().endswith("ä")


@pytest.mark.rule("iso_worker.payload.limit")
def test_a_frame_that_is_too_large_is_answered_from_its_header_alone() -> None:
    data = request(MATRIX, 5)[: HEADER.size]
    code, [(header, text)] = exchange(data, max_payload=MATRIX.nbytes - 1)
    assert (code, header.code, header.request_id) == (2, Status.TOO_LARGE, 5)
    assert "23" in text.decode()
    code, [(header, _)] = exchange(request(MATRIX), max_payload=MATRIX.nbytes)
    assert (code, header.code) == (0, Status.OK)


@pytest.mark.rule("iso_worker.payload.complete")
def test_an_input_that_ends_inside_a_payload_is_answered() -> None:
    code, [(header, text)] = exchange(request(MATRIX, 3)[:-1])
    assert (code, header.code, header.request_id) == (2, Status.BAD_LENGTH, 3)
    assert "23 of 24" in text.decode()


@pytest.mark.rule("iso_worker.header.complete")
@pytest.mark.parametrize("size", [1, HEADER.size - 1])
def test_an_input_that_ends_inside_a_header_is_not(size: int) -> None:
    assert exchange(request(MATRIX)[:size]) == (2, [])


@pytest.mark.rule("iso_worker.header.complete")
def test_an_input_that_ends_between_frames_is_the_ordinary_end() -> None:
    assert exchange(b"") == (0, [])


# -- the decomposition ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MERGE if "expected_f32_svd_backend" in MERGE[name]])
def test_the_published_matrices(name: str) -> None:
    vector = MERGE[name]
    shape = vector["rows"], vector["cols"]
    matrix = np.array(vector["averaged_input"]["f32"], np.float32).reshape(shape)
    expected = np.array(vector["expected_f32_svd_backend"]["f32"], np.float32).reshape(shape)
    np.testing.assert_allclose(numpy_backend("cpu")(matrix), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (16, 5), (5, 16), (24, 24)])
def test_it_agrees_with_the_scalar_backend(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(numpy_backend("cpu")(matrix), iso(matrix), rtol=2e-5, atol=2e-5)


def test_a_zero_matrix_comes_back_unchanged() -> None:
    assert not numpy_backend("cpu")(np.zeros((3, 4), np.float32)).any()


# -- the process ---------------------------------------------------------------------------------------------


def run(*flags: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *flags], input=data, capture_output=True, timeout=WAIT_S, check=False)


def test_a_process_answers_until_its_input_ends() -> None:
    done = run("--device", "cpu", "--backend", "numpy", data=request(MATRIX) + request(NAN, 2))
    assert (done.returncode, done.stderr) == (0, b"")
    assert [header.code for header, _ in replies(done.stdout)] == [Status.OK, Status.NON_FINITE_INPUT]


@pytest.mark.rule("iso_worker.payload.limit")
def test_the_limit_can_be_set() -> None:
    done = run(*("--device", "cpu", "--backend", "numpy", "--max-frame-bytes", "8"), data=request(MATRIX) * 2)
    assert done.returncode == 2
    assert [header.code for header, _ in replies(done.stdout)] == [Status.TOO_LARGE]
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("flags", [(), ("--device", "cpu", "--max-frame-bytes", "0"), ("--gpu", "0")])
def test_a_wrong_command_line_is_exit_2(flags: tuple[str, ...]) -> None:
    done = run(*flags)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


def test_a_device_that_cannot_be_used_is_one_line_and_exit_1() -> None:
    done = run("--device", "cuda:0", "--backend", "numpy")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().splitlines() == [
        "SVD worker: cannot use the device cuda:0: numpy knows only cpu; --device"
    ]


def python(code: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, timeout=WAIT_S, check=False
    )


def test_a_missing_torch_is_one_line_and_exit_1() -> None:
    done = python(
        "import sys; sys.modules['torch'] = None\n"
        "from yeto_syncer.svd_worker import main\n"
        "raise SystemExit(main(['--device', 'cpu']))"
    )
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("SVD worker: cannot import torch: ") and sys.executable in line


def test_only_frames_reach_standard_output() -> None:
    done = python(
        "import os\n"
        "from yeto_syncer import svd_worker\n"
        "def backend(device):\n"
        "    print('loading'); os.write(1, b'by number\\n')\n"
        "    def flatten(matrix):\n"
        "        print('working', flush=True)\n"
        "        return matrix\n"
        "    return flatten\n"
        "svd_worker.BACKENDS = {'torch': backend}\n"
        "raise SystemExit(svd_worker.main(['--device', 'cpu']))",
        request(MATRIX),
    )
    assert done.returncode == 0
    assert [payload for _, payload in replies(done.stdout)] == [MATRIX.tobytes()]
    assert sorted(done.stderr.decode().split()) == ["by", "loading", "number", "working"]


def test_the_device_is_touched_before_the_first_frame_is_read() -> None:
    code = (
        "import sys\n"
        "from yeto_syncer import svd_worker\n"
        "def backend(device):\n"
        "    print('touched', device, file=sys.stderr, flush=True)\n"
        "    return lambda matrix: matrix\n"
        "svd_worker.BACKENDS = {'torch': backend}\n"
        "raise SystemExit(svd_worker.main(['--device', 'cuda:7']))"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdin is not None and process.stderr is not None
        assert process.stderr.readline() == b"touched cuda:7\n"  # and nothing was sent yet
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_do_not_end_it(number: int) -> None:
    with subprocess.Popen(
        [*COMMAND, "--device", "cpu", "--backend", "numpy"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        one = np.ones((1, 1), np.float32)
        process.stdin.write(request(one))
        process.stdin.flush()
        assert process.stdout.read(len(request(one)))  # from here on it runs
        process.send_signal(number)
        process.stdin.write(request(one, 2))
        process.stdin.flush()
        [(header, _)] = replies(process.stdout.read(len(request(one))))
        assert (header.code, header.request_id) == (Status.OK, 2)
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    with subprocess.Popen(
        [*COMMAND, "--device", "cpu", "--backend", "numpy"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(request(MATRIX))
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_S) == 0
