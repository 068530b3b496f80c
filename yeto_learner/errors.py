"""Exceptions of the learner beside those of `yeto_proto`."""

from __future__ import annotations

from typing import Final

from yeto_proto._generated.errors import YetoError

__all__ = [
    "LearnerIdInUseError",
    "NonFiniteParameterError",
    "PartialMessageGenerationLost",
    "ProtocolError",
    "SessionRejectedError",
]

# How an ERROR text begins, and the counter that an operator watches for it.  The text is for people; these
# prefixes only choose a name for monitoring, nothing else depends on them.
REJECTION_METRICS: Final = (
    ("session mismatch", "layout_hash_mismatch"),
    ("HELLO syncer semantic profile", "syncer_profile_mismatch"),
    ("HELLO is missing the required syncer semantic profile", "syncer_profile_mismatch"),
    ("HELLO authentication failed", "island_auth_failed"),
)


class ProtocolError(RuntimeError):
    """The exchange with the syncer broke a rule, or the syncer refused it: the client is over and never
    redials.

    `error` is the error of `yeto_proto` that says which rule, where one was raised.
    """

    def __init__(self, message: str, error: YetoError | None = None) -> None:
        super().__init__(message)
        self.error = error


class SessionRejectedError(ProtocolError):
    """The syncer sent an ERROR frame.  `text` is its text; `metric` names the known reasons, else None.

    As a string it is one line without control characters, whatever the syncer sent: it ends in terminals.
    """

    def __init__(self, text: str, error: YetoError | None = None) -> None:
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
        super().__init__(f"syncer rejected protocol session: {shown}", error)
        self.text = text
        self.metric = next((name for head, name in REJECTION_METRICS if text.startswith(head)), None)


class PartialMessageGenerationLost(RuntimeError):  # noqa: N818 - the name that users of the protocol know
    """The connection was lost in the middle of a streamed message, which never arrives as a whole."""

    def __init__(
        self, operation: str, connection_generation: int, connection_epoch: int, queued_chunks: int
    ) -> None:
        super().__init__(
            f"{operation}: connection {connection_generation} was lost after {queued_chunks} chunks"
        )
        self.operation = operation
        self.connection_generation = connection_generation
        self.connection_epoch = connection_epoch
        self.queued_chunks = queued_chunks


class LearnerIdInUseError(RuntimeError):
    """Another `Learner` on this machine has the same id in the same run."""


class NonFiniteParameterError(ValueError):
    """A parameter holds NaN or an infinity, so it cannot be sent; `name` is the tensor."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"parameter {name!r}: {what} is not finite; nothing was sent. Check loss and learning rate of "
            f"the last steps, restore the parameter, then go on"
        )
        self.name = name
