"""`LearnerOptions` names every keyword of `Learner`, so that a wrapper passes all of them on."""

from __future__ import annotations

import inspect

from yeto_learner import Learner
from yeto_learner.options import LearnerOptions


def test_the_options_are_the_keywords_of_the_learner() -> None:
    keywords = {
        name
        for name, parameter in inspect.signature(Learner).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert set(LearnerOptions.__annotations__) == keywords
    assert LearnerOptions.__required_keys__ == frozenset()
