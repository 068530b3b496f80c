"""The arguments in docstrings become lists on the pages of the reference."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable

import pytest

from tests.docs.blocks import SITE
from yeto_learner import Learner, SyncerClient
from yeto_proto import build_layout


@pytest.fixture(scope="module")
def listed() -> Callable[[str], str]:
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("readable", SITE / "readable.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[str], str] = module.listed
    return found


def test_arguments_become_items(listed: Callable[[str], str]) -> None:
    arguments = 'one: first.\n    And more.\ntwo, three ("a", "b"): other; four: last.'
    text = f"What it does.\n\n{arguments}\n\nRaises nothing."
    told = [
        *(
            "What it does.",
            "",
            "- `one`: first. And more.",
            '- `two`, `three` ("a", "b"): other',
            "- `four`: last.",
        ),
        *("", "Raises nothing."),
    ]
    assert listed(text).splitlines() == told


def test_arguments_under_a_heading_become_items(listed: Callable[[str], str]) -> None:
    text = "The layout:\n    names: of what\n    goes on.\n    size: in bytes."
    assert listed(text).splitlines() == [
        "The layout:",
        "",
        "- `names`: of what goes on.",
        "- `size`: in bytes.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "An example:\n\n    call(me)\n    name: value",
        "Raises OSError: never.\nAnd so on.",
        "consume: as for the other.\nRaises OSError.",
        "One line.",
    ],
)
def test_other_text_stays(text: str, listed: Callable[[str], str]) -> None:
    assert listed(text) == text


@pytest.mark.parametrize("of", [Learner, SyncerClient, build_layout])
def test_each_argument_of_the_long_lists_has_an_item(
    of: Callable[..., object], listed: Callable[[str], str]
) -> None:
    items = [line for line in listed(inspect.getdoc(of) or "").splitlines() if line.startswith("- ")]
    names = [name for name in inspect.signature(of).parameters if name != "self"]
    heads = "\n".join(item.partition(": ")[0] for item in items)
    assert len(items) >= 5
    assert not [name for name in names if f"`{name}`" not in heads]
