"""The generated module of transition tables."""

from __future__ import annotations

from codegen.machines import Machine
from codegen.parts.naming import TARGET, import_order
from codegen.render import Output, render
from codegen.spec import Spec

ELSEWHERE = {
    "refuse": "Any other pair is `WrongState`.",
    "stay": "Any other pair changes nothing, but for a final state, which takes no input.",
}


def outputs(spec: Spec) -> list[Output]:
    """One module for all machines."""
    machines: tuple[Machine, ...] = spec.parts["machines"]
    names = [each.machine.upper() for each in machines]
    names += [f"{each.camel}{kind}" for each in machines for kind in ("Input", "State")]
    context = {"machines": machines, "exports": sorted(names, key=import_order), "elsewhere": ELSEWHERE}
    return [render("machines.py.j2", f"{TARGET}/machines.py", ["spec/machines/*.yaml"], context)]
