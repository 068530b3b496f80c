"""The protocol between syncer and learners, version 4: messages, codec, layouts and files, without a socket.

`encode` and `decode` turn messages into bytes and back, `FrameReader` turns a byte stream into messages,
`Session` holds what the first HELLO fixed, and `build_layout` groups a model's tensors into fragments. The
classes of the messages are in `yeto_proto.messages`, those of the refusals in `yeto_proto.errors`.

Names are loaded when they are first used: the commands can then answer `--help` and take a Ctrl-C before
numpy and construct are there.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of typing takes longer to load than a Ctrl-C should be able to find

if TYPE_CHECKING:
    from typing import Any

    from . import dtypes, errors, files, messages
    from ._generated.constants import FINALIZATION_REVISION, PROTOCOL_VERSION, TINY, WIRE, Preset
    from ._generated.errors import PeerError, UseError, WireError
    from ._generated.types import Dtype, FrameType, IsoBackend, MergeMode, Role
    from .chunks import Reassembler, slices
    from .codec import decode, encode
    from .errors_base import YetoError
    from .layout import Fragment, Layout, Tensor, build_layout
    from .reader import FrameReader
    from .session import Session, WireLayout

__all__ = [
    "FINALIZATION_REVISION",
    "PROTOCOL_VERSION",
    "TINY",
    "WIRE",
    "Dtype",
    "Fragment",
    "FrameReader",
    "FrameType",
    "IsoBackend",
    "Layout",
    "MergeMode",
    "PeerError",
    "Preset",
    "Reassembler",
    "Role",
    "Session",
    "Tensor",
    "UseError",
    "WireError",
    "WireLayout",
    "YetoError",
    "build_layout",
    "decode",
    "dtypes",
    "encode",
    "errors",
    "files",
    "messages",
    "slices",
]

_MODULES = ("dtypes", "errors", "files", "messages")

_NAMES = {
    "._generated.constants": ("FINALIZATION_REVISION", "PROTOCOL_VERSION", "TINY", "WIRE", "Preset"),
    "._generated.errors": ("PeerError", "UseError", "WireError"),
    "._generated.types": ("Dtype", "FrameType", "IsoBackend", "MergeMode", "Role"),
    ".chunks": ("Reassembler", "slices"),
    ".codec": ("decode", "encode"),
    ".errors_base": ("YetoError",),
    ".layout": ("Fragment", "Layout", "Tensor", "build_layout"),
    ".reader": ("FrameReader",),
    ".session": ("Session", "WireLayout"),
}

_HOMES = {name: home for home, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # for a type checker the imports above are all there is

    def __getattr__(name: str) -> Any:
        value: Any
        if name in _MODULES:
            value = import_module(f".{name}", __name__)
        elif name in _HOMES:
            value = getattr(import_module(_HOMES[name], __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value
