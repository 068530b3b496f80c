"""The protocol between syncer and learners, version 4: messages, codec, layouts and files, without a socket.

`encode` and `decode` turn messages into bytes and back, `FrameReader` turns a byte stream into messages,
`Session` holds what the first HELLO fixed, and `build_layout` groups a model's tensors into fragments. The
classes of the messages are in `yeto_proto.messages`, those of the refusals in `yeto_proto.errors`.
"""

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
