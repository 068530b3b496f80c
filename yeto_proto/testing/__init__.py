"""Hypothesis strategies for implementers and for our own tests (extra `yeto[testing]`).

`strategies` is generated: `valid_<frame>(session)` draws messages and `broken_<frame>(session)` payloads that
break one rule. `sessions` and `layouts` draw what they need.
"""

from __future__ import annotations

from .strategies import BROKEN, VALID
from .support import Broken, layouts, payload_of, sessions

__all__ = ["BROKEN", "VALID", "Broken", "layouts", "payload_of", "sessions"]
