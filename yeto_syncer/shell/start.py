"""What must hold before the server listens: key, address, port, files, lock, checkpoint."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yeto_proto._generated.errors import YetoError
from yeto_proto._generated.types import IsoBackend
from yeto_proto.files import Snapshot, load_checkpoint
from yeto_syncer.core import resume
from yeto_syncer.core.config import Config
from yeto_syncer.shell import storage
from yeto_syncer.shell.listener import BACKLOG, shown
from yeto_syncer.shell.lockfile import LockFile, LockHeldError
from yeto_syncer.shell.logs import Log
from yeto_syncer.shell.resolve import Resolved
from yeto_syncer.shell.storage import Storage
from yeto_syncer.shell.svd_pool import BadTimeoutError, SvdPool, SvdPoolError, Timeouts
from yeto_syncer.shell.tape import Tape
from yeto_syncer.shell.tls import TlsFilesError, server_context

KEY_VARIABLE = "YETO_ISLAND_HMAC_KEY"

Socket = socket.socket

PORT_TROUBLE = frozenset({errno.EADDRINUSE, errno.EACCES})
"""What a bind says when the address is fine and the port is not."""


class StartError(Exception):
    """Why the server cannot start: what, where, what to do."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what}; {where}; {fix}")


@dataclass(slots=True)
class Prepared:
    """All that a server needs from outside its process."""

    key: bytes | None
    socket: socket.socket
    storage: Storage
    tape: Tape | None
    resumed: Snapshot | None
    svd: SvdPool | None
    tls: ssl.SSLContext | None
    metrics: Socket | None
    status: Socket | None


def prepare(
    config: Config, settings: Resolved, environ: Mapping[str, str], log: Log, stack: contextlib.ExitStack
) -> Prepared:
    """Open and check everything; `stack` gets what has to be undone at the end. Raises StartError."""
    key = read_key(settings, environ)
    family, address = _address(settings["host"], settings["port"])
    tls = tls_context(settings)
    _guard(settings, address, key, tls, log)
    checkpoint = Path(config.checkpoint_path) if config.checkpoint_path is not None else None
    final_state = Path(config.final_state) if config.final_state is not None else None
    port_file = Path(settings["port_file"]) if settings["port_file"] is not None else None
    for flag, path in (
        ("--checkpoint-path", checkpoint),
        ("--final-state", final_state),
        ("--port-file", port_file),
    ):
        trouble = storage.problem(path) if path is not None else None
        if trouble is not None:
            raise StartError(f"cannot write {path}: {trouble}", flag, "give a path that can be written")
    bound = _bind(family, address)
    stack.callback(bound.close)
    metrics = _side_socket(settings, "metrics", stack)
    status = _side_socket(settings, "status", stack)
    if checkpoint is not None:
        _lock(checkpoint, stack)
    # Not before: the process that held the lock may just have written its first checkpoint.
    resuming = checkpoint is not None and _resuming(config, checkpoint)
    tape = _tape(config)
    resumed = None
    if resuming:
        assert checkpoint is not None
        resumed = _load(config, checkpoint)
        log.write("info", "resumed", _settings_of(config, resumed))
    elif checkpoint is not None and checkpoint.is_file():
        what = "a checkpoint is there and this run will replace it; to continue it, stop and give --resume"
        log.write("warning", what, {"path": checkpoint})
    svd = _svd_pool(config, settings, environ, log, stack)
    _listen(bound)
    if port_file is not None:
        _write_port(port_file, bound.getsockname()[1], stack)
    return Prepared(key, bound, Storage(checkpoint, final_state), tape, resumed, svd, tls, metrics, status)


def read_key(settings: Resolved, environ: Mapping[str, str]) -> bytes | None:
    """The key that HELLOs are sealed with, or None. Raises StartError for a key file that cannot be used."""
    path = settings["island_hmac_key_file"]
    if path is None:
        return environ.get(KEY_VARIABLE, "").encode() or None
    flag = "--island-hmac-key-file"
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        raise StartError(
            f"cannot read the key {path}: {error.strerror}", flag, "give a readable file"
        ) from None
    # One newline and no more, as a learner reads the same file: a key of random bytes may end in others.
    key = key.removesuffix(b"\r\n") if key.endswith(b"\r\n") else key.removesuffix(b"\n")
    if not key:
        raise StartError(f"the key {path} is empty", flag, "write a key into the file")
    return key


def tls_context(settings: Resolved) -> ssl.SSLContext | None:
    """TLS as the settings ask for it, or None. Raises StartError for files that cannot be used."""
    certificate, key, ca = (settings[name] for name in ("tls_cert", "tls_key", "tls_client_ca"))
    if certificate is None and key is None and ca is None:
        return None
    for path, flag in ((certificate, "--tls-cert"), (key, "--tls-key")):
        if path is None:
            given = "--tls-client-ca" if ca is not None else "--tls-cert" if certificate else "--tls-key"
            raise StartError(f"{given} is given without {flag}", flag, "give both --tls-cert and --tls-key")
    try:
        return server_context(Path(certificate), Path(key), Path(ca) if ca is not None else None)
    except TlsFilesError as error:
        raise StartError(error.what, error.flag, error.fix) from None


def _address(host: str, port: int, flag: str = "--host") -> tuple[int, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # a name that cannot be one, as a..b
        why = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise StartError(
            f"cannot resolve {host}: {why}", flag, "give a name or address of this machine"
        ) from None
    family, _, _, _, address = found[0]
    return family, address


def _guard(
    settings: Resolved,
    address: tuple[object, ...],
    key: bytes | None,
    tls: ssl.SSLContext | None,
    log: Log,
) -> None:
    # D25: whoever reaches the port can join the run and read the model.
    proven = key is not None or (tls is not None and tls.verify_mode is ssl.CERT_REQUIRED)
    if proven or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        return
    if tls is None and not settings["allow_unauthenticated"]:
        raise StartError(
            f"{address[0]} is not a loopback address and nobody would have to authenticate",
            "--host",
            f"give --island-hmac-key-file, {KEY_VARIABLE} or --tls-cert, "
            "or --allow-unauthenticated if you trust all",
        )
    log.write("warning", "anybody who reaches this address can join the run", {"host": address[0]})


def _resuming(config: Config, checkpoint: Path) -> bool:
    if not (config.resume or config.resume_if_exists):
        return False
    if checkpoint.is_file():
        return True
    if config.resume:
        raise StartError(
            f"there is no checkpoint {checkpoint} to continue from",
            "--resume",
            "correct --checkpoint-path, or use --resume-if-exists to start fresh when there is none",
        )
    return False


def _bind(family: int, address: tuple[object, ...], flag: str = "--port") -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _unusable(address, error, flag) from None
    return sock


def _side_socket(settings: Resolved, name: str, stack: contextlib.ExitStack) -> socket.socket | None:
    # The socket of a page that only shows something.
    port, flag = settings[f"{name}_port"], f"--{name}-port"
    if port is None:
        return None
    if name == "metrics" and importlib.util.find_spec("prometheus_client") is None:
        raise StartError("prometheus_client is not installed", flag, "install yeto[metrics], or leave it out")
    family, address = _address(settings[f"{name}_host"], port, f"--{name}-host")
    bound = _bind(family, address, flag)
    stack.callback(bound.close)
    return bound


def _listen(bound: socket.socket) -> None:
    # Last of all: from here on learners get a connection.
    try:
        bound.listen(BACKLOG)
    except OSError as error:  # another process has bound the same address and was faster
        raise _unusable(bound.getsockname(), error) from None


def _unusable(address: tuple[object, ...], error: OSError, flag: str = "--port") -> StartError:
    port = error.errno in PORT_TROUBLE
    return StartError(
        f"cannot listen on {shown(address)}: {error.strerror}",
        flag if port else flag.replace("port", "host"),
        f"stop the process that uses it, or choose another {flag} (0 takes a free one)"
        if port
        else "give an address of this machine",
    )


def _lock(checkpoint: Path, stack: contextlib.ExitStack) -> None:
    try:
        stack.enter_context(LockFile(checkpoint))
    except LockHeldError as error:
        raise StartError(
            str(error.strerror), "--checkpoint-path", "end that process first, or use another path"
        ) from None
    except OSError as error:
        raise StartError(
            f"cannot lock {checkpoint}: {error.strerror}",
            "--checkpoint-path",
            "give a path that can be written",
        ) from None


def _tape(config: Config) -> Tape | None:
    if config.event_tape is None:
        return None
    try:
        return Tape(Path(config.event_tape))
    except OSError as error:
        raise StartError(
            f"cannot open the event tape {config.event_tape}: {error.strerror}",
            "--event-tape",
            "give a path that can be written",
        ) from None


def _load(config: Config, checkpoint: Path) -> Snapshot:
    try:
        snapshot = load_checkpoint(checkpoint, config.iso_backend_id)
    except (YetoError, OSError) as error:
        raise StartError(
            f"cannot continue from {checkpoint}: {error}",
            "--checkpoint-path",
            "use a checkpoint of this run, or move the file away to start fresh",
        ) from None
    trouble = resume.problem(config, snapshot)
    if trouble is not None:
        what, where, fix = trouble.split("; ", 2)
        raise StartError(what, where, fix)
    return snapshot


def _svd_pool(
    config: Config, settings: Resolved, environ: Mapping[str, str], log: Log, stack: contextlib.ExitStack
) -> SvdPool | None:
    if config.iso_backend_id is not IsoBackend.TORCH_SVD:
        return None
    python, devices = settings["iso_worker_python"], settings["iso_worker_devices"]
    devices = devices or (settings["iso_worker_device"],)
    capacity = settings["iso_worker_queue_capacity"]
    try:
        pool = SvdPool.start(python, devices, capacity, Timeouts.of(environ), environ)
    except BadTimeoutError as error:
        raise StartError(str(error), "environment", f"correct it or unset {error.name}") from None
    except SvdPoolError as error:
        raise StartError(
            str(error),
            "--iso-worker-python",
            "give an interpreter that has yeto and torch and sees this device",
        ) from None
    stack.callback(pool.close)
    log.write("info", "SVD workers are ready", {"devices": ",".join(devices), "capacity": capacity})
    return pool


def _settings_of(config: Config, snapshot: Snapshot) -> dict[str, object]:
    # What no file compares (D26), for whoever looks for the reason of a different curve.
    return {
        "step": snapshot.global_step,
        "fragments": len(snapshot.fragments),
        "outer_lr": config.outer_lr,
        "outer_momentum": config.outer_momentum,
        "delta_correction": config.delta_correction,
        "learners": config.learners,
        "quorum": config.quorum,
    }


def _write_port(path: Path, port: int, stack: contextlib.ExitStack) -> None:
    part = path.with_name(f"{path.name}.tmp")
    try:
        part.write_text(f"{port}\n", encoding="ascii")
        part.replace(path)
    except OSError as error:
        raise StartError(
            f"cannot write the port file {path}: {error.strerror}",
            "--port-file",
            "give a path that can be written",
        ) from None
    stack.callback(path.unlink, missing_ok=True)
