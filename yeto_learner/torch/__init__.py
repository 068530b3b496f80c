"""PyTorch models as learners (extra `yeto[torch]`): `TorchLearner` takes a module where `Learner` takes
arrays.
"""

try:
    import torch  # noqa: F401 - only to say what is missing
except ImportError as error:
    raise ImportError(
        "yeto_learner.torch needs PyTorch; install it with: pip install 'yeto[torch]'"
    ) from error

from .learner import TorchLearner
from .ranks import OtherRankError

__all__ = ["OtherRankError", "TorchLearner"]
