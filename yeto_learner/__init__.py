"""The learner side of Decoupled DiLoCo: `Learner` for a training loop, `SyncerClient` below it.

Names are loaded when they are first used: the `yeto-learner` command can then answer `--help`, take a
Ctrl-C and choose the number of BLAS threads before numpy is there.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of typing takes longer to load than a Ctrl-C should be able to find

if TYPE_CHECKING:
    from typing import Any

    from .client import SyncerClient
    from .core.records import BcastFragment, FinalFragment, FinalManifest, PullRequest
    from .errors import (
        LearnerIdInUseError,
        NonFiniteParameterError,
        PartialMessageGenerationLost,
        ProtocolError,
        SessionRejectedError,
    )
    from .learner import Learner
    from .record import ResumeRecord
    from .subscriber import Subscriber

__all__ = [
    "BcastFragment",
    "FinalFragment",
    "FinalManifest",
    "Learner",
    "LearnerIdInUseError",
    "NonFiniteParameterError",
    "PartialMessageGenerationLost",
    "ProtocolError",
    "PullRequest",
    "ResumeRecord",
    "SessionRejectedError",
    "Subscriber",
    "SyncerClient",
]

_HOMES = {
    "BcastFragment": ".core.records",
    "FinalFragment": ".core.records",
    "FinalManifest": ".core.records",
    "Learner": ".learner",
    "LearnerIdInUseError": ".errors",
    "NonFiniteParameterError": ".errors",
    "PartialMessageGenerationLost": ".errors",
    "ProtocolError": ".errors",
    "PullRequest": ".core.records",
    "ResumeRecord": ".record",
    "SessionRejectedError": ".errors",
    "Subscriber": ".subscriber",
    "SyncerClient": ".client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return value
