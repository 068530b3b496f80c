"""The generated modules of pipes: header, numbers and statuses of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codegen.parts.naming import TARGET
from codegen.pipes import FORMATS, PipeText
from codegen.render import Output, literal, render
from codegen.spec import Spec

_TYPES = {"8 bytes": "bytes", "u32": "int", "u64": "int"}


def outputs(spec: Spec) -> list[Output]:
    """One module for each pipe."""
    return [
        render(
            "pipe.py.j2",
            f"{TARGET}/{text.pipe}.py",
            [f"spec/pipes/{text.pipe}.yaml"],
            {"text": text, "view": PipeView(text)},
        )
        for text in spec.parts["pipes"]
    ]


@dataclass(frozen=True, slots=True)
class PipeView:
    """What the template asks for."""

    text: PipeText

    def format(self) -> str:
        """The struct layout of the header."""
        return "<" + "".join(FORMATS[each.type] for each in self.text.fields)

    def python_type(self, type: str) -> str:
        """The Python type of a field."""
        return _TYPES[type]

    def value(self, name: str) -> Any:
        """A constant as a Python literal."""
        return literal(self.text.constant(name))
