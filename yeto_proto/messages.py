"""The messages of the protocol, one frozen class per frame."""

from ._generated.messages import *  # noqa: F403
from ._generated.messages import __all__ as __all__
