"""Every refusal as a class; see the error page of the documentation."""

from ._generated.errors import *  # noqa: F403
from ._generated.errors import __all__ as __all__
