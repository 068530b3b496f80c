"""PyTorch models as learners (extra `yeto[torch]`): `TorchLearner` takes a module where `Learner` takes
arrays.
"""

from .learner import TorchLearner
from .ranks import OtherRankError

__all__ = ["OtherRankError", "TorchLearner"]
