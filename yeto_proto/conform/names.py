"""Names that stand on the command line and mean something to the runner."""

from __future__ import annotations

from typing import Final

__all__ = ["CUTS", "REDACTIONS", "ROLES"]

#: Roles as traces and sut files call them, and as people read them.
ROLES: Final = {"server": "syncer", "client": "learner", "codec": "codec"}

#: How the bytes of a trace are written: as recorded, all that may be together in one write, split at each
#: edge of a field, and (up to BYTE_CUT) one byte a write.
CUTS: Final = ("recorded", "coalesced", "fields", "bytes")

#: How tensor bytes are left out: not at all; by a hash; those of learners by a pattern that every dtype takes
#: for finite values, so that the trace can still be sent, and those of the syncer by a hash.
REDACTIONS: Final = ("none", "hash", "fill")
