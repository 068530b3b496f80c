"""Bytes of one socket to messages, without I/O.

The caller receives into `get_buffer()` and reports the number of bytes to `buffer_updated`, the shape of
`asyncio.BufferedProtocol`; a thread can do `reader.buffer_updated(sock.recv_into(reader.get_buffer()))`.

Small frames are gathered in a scratch buffer, so that one receive may bring many of them.  As soon as the header
of a large frame has been judged (for a CHUNK: its envelope too), the few bytes of it that are in the scratch
buffer move to where the frame belongs, and the socket writes the rest there directly: to the payload's own
buffer, or to its place in the reassembly buffer of the message.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from . import hello_mac
from ._generated.constants import CHUNK_HEAD_BYTES, HEADER_BYTES, MAGIC, WIRE, Preset
from ._generated.errors import BadArgument, WrongState
from ._generated.limits import RECEIVES, payload_limit
from ._generated.messages import Buffer, Hello, Message
from ._generated.rules import RULES
from ._generated.structs import CHUNK
from ._generated.types import FrameType, Role
from .chunks import Reassembler
from .codec import decode, parse_header
from .errors_base import YetoError
from .session import Session

# A full-size chunk leaves at most this much in the scratch buffer, 0.2 % of its bytes, and it still holds
# hundreds of control frames.
_SCRATCH: Final = 8192
_CHUNK_START: Final = HEADER_BYTES + CHUNK_HEAD_BYTES
