"""The MAC of a HELLO: an extension beside protocol v4, for groups that share a key.

A sealed payload is the whole HELLO payload followed by HMAC-SHA256(key, domain | payload).  It is checked and
stripped before HELLO is parsed.  DATA_HELLO never carries one.
"""

from __future__ import annotations

import hashlib
import hmac

from ._generated.constants import HEADER_BYTES, MAC_BYTES, MAC_DOMAIN
from ._generated.errors import AuthenticationFailed, BadArgument
from ._generated.messages import Buffer, Hello
from ._generated.types import FrameType
from .codec import header
from .writer import frame


def seal(body: Buffer, key: bytes) -> bytes:
    """What to send as the payload of a HELLO: `body` and its MAC.  Raises BadArgument for an empty key."""
    return bytes(body) + _mac(body, key)


def hello_frame(hello: Hello, key: bytes | None) -> list[Buffer]:
    """The frame of a HELLO in buffers, sealed with a key if there is one."""
    if key is None:
        return frame(hello)
    sealed = seal(b"".join(frame(hello))[HEADER_BYTES:], key)
    return [header(FrameType.HELLO, len(sealed)), sealed]


def open(payload: Buffer, key: bytes) -> memoryview:
    """The HELLO payload inside a sealed one, as a view of it.

    Raises AuthenticationFailed when the MAC is missing or wrong, without telling by its time how wrong it is;
    BadArgument for no key.
    """
    view = memoryview(payload)
    size = max(len(view) - MAC_BYTES, 0)
    body, mac = view[:size], view[size:]
    if not hmac.compare_digest(_mac(body, key), mac):
        raise AuthenticationFailed(
            rule="hello.hello_mac.mac", frame="HELLO", field="hello_mac", offset=size, limit=MAC_BYTES
        )
    return body


def _mac(body: Buffer, key: bytes) -> bytes:
    # An empty key would make a MAC that anybody can compute.
    if not key:
        raise BadArgument(field="key", detail="the HELLO MAC needs a key that is not empty")
    mac = hmac.new(key, MAC_DOMAIN, hashlib.sha256)
    mac.update(body)
    return mac.digest()
