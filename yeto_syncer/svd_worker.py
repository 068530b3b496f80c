"""`python -m yeto_syncer.svd_worker --device DEVICE`: flattens the singular spectrum of matrices.

The syncer starts one such process for each device with `--iso-backend torch-svd`. Frames come on standard
input and answers go to standard output, as `spec/pipes/iso_worker.yaml` describes them. PyTorch is imported
in this process only, so that neither its memory nor a crash of its libraries is the syncer's.

Exit codes: 0 when the input ends between two frames, 1 when the device cannot be used, 2 when the input ends
inside a frame or announces one that is too large, and for a wrong command line.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yeto_proto import dtypes
from yeto_proto._generated.constants import ISO_CUTOFF
from yeto_proto._generated.errors import NonFinite
from yeto_proto._generated.iso_worker import (
    HEADER,
    MAGIC,
    MAX_PAYLOAD,
    REQUEST,
    TEXT_MAX,
    VERSION,
    Header,
    Status,
)
from yeto_proto._generated.types import Dtype

F32 = NDArray[np.float32]
Flatten = Callable[[F32], F32]

VALUE_BYTES: Final = 4
MAX_VALUES: Final = (1 << 63) - 1
MAX_BYTES: Final = (1 << 64) - 1


class Source(Protocol):
    """A binary stream to read from."""

    def readinto(self, buffer: Any, /) -> int | None: ...


class Sink(Protocol):
    """A binary stream to write to."""

    def write(self, buffer: Any, /) -> int | None: ...


class DeviceError(Exception):
    """The device or a library that it needs cannot be used."""


class Refusal(Exception):  # noqa: N818
    """A request that is answered with a status instead of a matrix."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


# -- the decomposition ---------------------------------------------------------------------------------------


def torch_backend(device: str) -> Flatten:
    """The thin SVD of PyTorch in f32 on `device`, which is used once before this returns.

    Raises DeviceError.
    """
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of it is missing
        raise DeviceError(
            f"cannot import torch: {first_line(error)}; {sys.executable}; install torch there"
        ) from None
    # The matrix product at the end must be as exact as the decomposition: no TF32.
    torch.set_float32_matmul_precision("highest")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).add_(1).cpu()
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        raise DeviceError(f"cannot use the device {device}: {first_line(error)}; --device") from None

    def flatten(matrix: F32) -> F32:
        with torch.inference_mode():
            left, values, right = torch.linalg.svd(torch.from_numpy(matrix).to(place), full_matrices=False)
            peak = values.max()
            if peak == 0:
                return matrix
            mean = values.sum() / values.numel()
            if not torch.isfinite(mean):
                return nowhere(matrix)
            kept = torch.where(values > ISO_CUTOFF * peak, mean, torch.zeros_like(mean))
            result: F32 = ((left * kept) @ right).cpu().contiguous().numpy()
            return result

    return flatten


def numpy_backend(device: str) -> Flatten:
    """The same formula with the f32 SVD of numpy, for machines without PyTorch. Raises DeviceError."""
    if device.partition(":")[0] != "cpu":
        raise DeviceError(f"cannot use the device {device}: numpy knows only cpu; --device")

    def flatten(matrix: F32) -> F32:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        peak = values.max()
        if peak == 0:
            return matrix
        mean = values.sum(dtype=np.float32) / np.float32(values.size)
        if not np.isfinite(mean):
            return nowhere(matrix)
        kept = np.where(values > np.float32(ISO_CUTOFF) * peak, mean, np.float32(0))
        result: F32 = (left * kept) @ right
        return result

    return flatten


def nowhere(matrix: F32) -> F32:
    """The result for a finite matrix whose singular values overflow. Their cutoff is infinite too: it would
    drop all of them and give zeros."""
    return np.full_like(matrix, np.nan)


BACKENDS: Final[Mapping[str, Callable[[str], Flatten]]] = {"torch": torch_backend, "numpy": numpy_backend}


# -- the pipe ------------------------------------------------------------------------------------------------


def serve(requests: Source, replies: Sink, flatten: Flatten, max_payload: int = MAX_PAYLOAD) -> int:
    """Answer every frame of `requests` until it ends; returns the exit code.

    Both streams are unbuffered. Raises BrokenPipeError when nobody reads the answers any more.
    """
    while True:
        head = bytearray(HEADER.size)
        got = fill(requests, head)
        if got == 0:
            return 0
        if got < HEADER.size:
            complain(f"the input ended after {got} of {HEADER.size} bytes of a header")
            return 2
        header = Header._make(HEADER.unpack(head))
        try:
            payload = read_payload(requests, header, max_payload)
        except Refusal as refusal:
            complain(str(refusal))
            refuse(replies, header, refusal)
            return 2
        try:
            result = answer(header, payload, flatten)
        except Refusal as refusal:
            refuse(replies, header, refusal)
        else:
            reply(replies, header, Status.OK, result.data.cast("B"))
        del payload  # the next one would find this one still in memory


def read_payload(requests: Source, header: Header, max_payload: int) -> NDArray[np.uint8]:
    """The bytes behind a header. Raises Refusal when the stream cannot be used after it."""
    size = header.payload_bytes
    if size > max_payload:
        raise Refusal(Status.TOO_LARGE, f"the payload has {size} bytes, this worker takes {max_payload}")
    try:
        payload = np.empty(size, np.uint8)
    except MemoryError:
        raise Refusal(Status.COMPUTE_ERROR, f"no memory for a payload of {size} bytes") from None
    got = fill(requests, payload.data)
    if got < size:
        raise Refusal(Status.BAD_LENGTH, f"the input ended after {got} of {size} bytes of the payload")
    return payload


def answer(header: Header, payload: NDArray[np.uint8], flatten: Flatten) -> F32:
    """The flattened matrix, contiguous and finite. Raises Refusal."""
    rows, cols = judge(header)
    matrix = payload.view("<f4").reshape(rows, cols)
    if not finite(matrix):
        raise Refusal(Status.NON_FINITE_INPUT, "the matrix holds a NaN or an infinity")
    try:
        with np.errstate(all="ignore"):  # an overflow is looked for in the result instead
            result = np.ascontiguousarray(flatten(matrix), "<f4")
    except (RuntimeError, MemoryError, np.linalg.LinAlgError) as error:  # torch's own are RuntimeErrors
        raise Refusal(Status.COMPUTE_ERROR, f"{type(error).__name__}: {error}") from None
    if not finite(result):
        raise Refusal(Status.NON_FINITE_OUTPUT, "the flattened matrix does not fit into f32")
    return result


def judge(header: Header) -> tuple[int, int]:
    """Rows and columns of a request. Raises Refusal."""
    rows, cols = header.rows, header.cols
    if header.magic != MAGIC:
        raise Refusal(Status.MALFORMED, f"the frame begins with {header.magic.hex()}, not {MAGIC.hex()}")
    if header.version != VERSION:
        raise Refusal(Status.UNSUPPORTED, f"version {header.version}, this worker knows {VERSION}")
    if header.code != REQUEST:
        raise Refusal(Status.UNSUPPORTED, f"code {header.code}, a request has {REQUEST}")
    if not rows or not cols or rows * cols > MAX_VALUES or rows * cols * VALUE_BYTES > MAX_BYTES:
        raise Refusal(Status.BAD_SHAPE, f"there is no matrix of {rows} x {cols}")
    if header.payload_bytes != rows * cols * VALUE_BYTES:
        raise Refusal(
            Status.BAD_LENGTH,
            f"{header.payload_bytes} bytes, a matrix of {rows} x {cols} has {rows * cols * VALUE_BYTES}",
        )
    return rows, cols


def finite(matrix: F32) -> bool:
    """Whether every value is finite."""
    try:
        dtypes.check_finite(Dtype.F32, matrix)
    except NonFinite:
        return False
    return True


def refuse(replies: Sink, header: Header, refusal: Refusal) -> None:
    """Answer with a status and its text."""
    text = str(refusal).encode()[:TEXT_MAX].decode(errors="ignore").encode()
    reply(replies, header, refusal.status, text)


def reply(replies: Sink, header: Header, status: Status, payload: Any) -> None:
    """Write one frame whole."""
    size = memoryview(payload).nbytes
    head = HEADER.pack(MAGIC, VERSION, status, header.request_id, header.rows, header.cols, size)
    for part in (head, payload):
        view = memoryview(part)
        while view:
            view = view[replies.write(view) or 0 :]


def fill(stream: Source, target: bytearray | memoryview) -> int:
    """Read into `target` until it is full or the stream ends; returns the number of bytes."""
    got = 0
    with memoryview(target) as view:
        while got < len(view):
            count = stream.readinto(view[got:])
            if not count:
                break
            got += count
    return got


# -- the process ---------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker on this process's standard input and output; returns the exit code."""
    arguments = parser().parse_args(argv)
    # Whoever stops a syncer often signals everything that belongs to it. The worker has to go on then, until
    # the syncer has finished its last rounds and closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    replies = claim_stdout()
    try:
        flatten = BACKENDS[arguments.backend](arguments.device)
    except DeviceError as error:
        complain(str(error))
        return 1
    try:
        with io.FileIO(sys.stdin.fileno(), closefd=False) as requests:
            return serve(requests, replies, flatten, arguments.max_frame_bytes)
    except BrokenPipeError:  # the syncer is gone
        return 0


def claim_stdout() -> io.FileIO:
    """A stream of its own for the frames; all else on standard output goes to standard error from now on."""
    replies = io.FileIO(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m yeto_syncer.svd_worker",
        description="Flattens matrices for a syncer with --iso-backend torch-svd. The syncer starts it; it "
        "takes frames on standard input, ignores SIGINT and SIGTERM, and ends with its input.",
        allow_abbrev=False,
    )
    made.add_argument("--device", required=True, help="Where to decompose, such as cuda:0 or cpu.")
    made.add_argument(
        "--max-frame-bytes",
        type=positive,
        default=MAX_PAYLOAD,
        metavar="N",
        help=f"Largest payload in bytes (default: {MAX_PAYLOAD}).",
    )
    made.add_argument("--backend", choices=tuple(BACKENDS), default="torch", help="Default: torch.")
    return made


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def complain(text: str) -> None:
    """One line on standard error, which workers and syncer share; the error of the run is the syncer's."""
    print(f"SVD worker: {text}", file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """The first line of an error's text; those of CUDA go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    raise SystemExit(main())
