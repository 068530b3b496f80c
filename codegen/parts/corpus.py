"""The conformance corpus of `yeto_proto.conform`: one file of JSON lines for each case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from codegen.conform import limits, passages, questions, scenario, sessions, uncovered
from codegen.conform.ask import codec_traces
from codegen.conform.trace import FOLDER, Trace, spec_hash
from codegen.faults import SpecFault
from codegen.numbers import unique
from codegen.render import Output
from codegen.spec import Spec

RULES_FILE = f"{FOLDER}/rules.json"
GAPS_FILE = f"{FOLDER}/uncovered.json"

# What a syncer under test is started with unless a case says otherwise: every round waits for everybody, and
# the outer step adds the mean delta, so that each value is known in advance.
SETTINGS: Mapping[str, Any] = {
    "learners": 1,
    "total_steps": 2,
    "grace_ms": 0,
    "pipeline": 1,
    "sync_interval_steps": 0,
    "outer_lr": 1,
    "outer_momentum": 0,
    "delta_correction": "none",
    "quorum_timeout_s": 60,
    "write_timeout_s": 60,
}
CLIENT: Mapping[str, Any] = {
    "learner_id": 0,
    "num_streams": 0,
    "merge_alpha": 0.0,
    "steps": 1,
    "tokens_per_step": 8,
    "step_ms": 2,
    "update": {"gen": "ramp", "seed": 1, "scale": 0.0078125},
}


def outputs(spec: Spec) -> list[Output]:
    """Every trace. Raises `SpecFault` for a case that names what does not exist."""
    digest = spec_hash(spec.root)
    cases = traces(spec)
    found = [Output(f"{FOLDER}/{each.area}/{each.id}.jsonl", each.lines(digest)) for each in cases]
    return [*found, Output(RULES_FILE, _rules(spec)), Output(GAPS_FILE, _gaps(spec, cases))]


def _gaps(spec: Spec, cases: list[Trace]) -> str:
    """Every rule without a case, with the reason."""
    # Those of time `decode` are looked after by `codegen.coverage`.
    rules = {each.id: True for each in spec.rules() if each.when != "decode"}
    for part, refuses in (("files", True), ("behaviour", False)):
        for text in spec.parts.get(part, ()):
            rules |= {text.rule_id(each): refuses for each in text.rules}
    return json.dumps(uncovered.reasons(spec.root, rules, cases), indent=1, ensure_ascii=True) + "\n"


def _rules(spec: Spec) -> str:
    """Every rule with its sentence, for reports."""
    texts = {each.id: f"{each.sentence} (else {each.error})" for each in spec.rules()}
    for part in ("files", "behaviour"):
        for text in spec.parts.get(part, ()):
            for each in text.rules:
                texts[text.rule_id(each)] = " ".join(str(each.says).split())
    return json.dumps(texts, indent=1, ensure_ascii=True) + "\n"


def traces(spec: Spec) -> list[Trace]:
    """Every trace, in the order of areas and files."""
    found = codec_traces(spec, spec.parts["codec_cases"])
    found += questions.traces(spec)
    found += limits.traces(spec)
    found += scenarios(spec)
    unique(found, lambda each: (each.id, spec.header.text.where), "case")
    return found


def scenarios(spec: Spec) -> list[Trace]:
    """The traces of the server and client cases."""
    known = scenario.known_rules(spec)
    shared = sessions.load(spec.root)
    found = []
    for file in scenario.load(spec.root, shared):
        for number, case in enumerate(file.cases):
            for rule in case.rules:
                if rule not in known:
                    raise SpecFault(case.lines["rule"], "rule", f"there is no rule {rule}")
            session = shared[case.session]
            more: dict[str, Any] = {"session": session.json(spec)}
            if file.role == "server":
                settings = {**SETTINGS, **file.settings, **case.settings}
                settings.setdefault("quorum", settings["learners"])
                more["settings"] = settings
            else:
                client = {**CLIENT, **file.client, **case.client}
                more["case"] = _client_case(session, client)
            side = "syncer" if file.role == "server" else "learner"
            first = 1 + 3 * number if file.share else 0
            lines = passages.Script(spec, session, _with(case, file), side, first).run()
            more |= {"side": side, **({"share": True} if file.share else {})}
            found.append(Trace(case.id, file.area, file.role, case.rules, case.expect, lines, case.doc, more))
    return found


def _with(case: scenario.Scenario, file: scenario.ScenarioFile) -> scenario.Scenario:
    values = {name: getattr(case, name) for name in case.__slots__}
    return scenario.Scenario(**{**values, "client": {**CLIENT, **file.client, **case.client}})


def _client_case(session: sessions.Session, client: Mapping[str, Any]) -> dict[str, Any]:
    number = 0
    fragments = []
    for each in session.fragments:
        tensors = []
        for tensor in each.tensors:
            initial = {"gen": "ramp", "seed": 10 * number, "scale": 1.0}
            tensors.append({"name": tensor.name, "shape": list(tensor.shape), "initial": initial})
            number += 1
        fragments.append({"merge_mode": each.merge_mode.lower(), "tensors": tensors})
    head = {"format": 1, "dtype": session.dtype.lower(), "session_contract": session.contract_hash.hex()}
    return {**head, **client, "fragments": fragments}
