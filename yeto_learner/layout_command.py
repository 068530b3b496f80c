"""`yeto-learner layout`: the fragments and the fingerprint of a model file, without loading the model."""

from __future__ import annotations

from typing import Any

from yeto_proto._generated.types import MergeMode
from yeto_proto.console.output import printable
from yeto_proto.layout import Layout
from yeto_proto.layout_file import MAX_HEADER, read_layout

__all__ = ["MAX_HEADER", "as_dict", "describe", "read_layout"]

SHOWN_NAMES = 3


def describe(layout: Layout) -> str:
    """The layout as text for people: a line per fragment, then totals and the fingerprint."""
    lines = [f"{'fragment':<10}{'merge':<7}{'tensors':>8}{'values':>16}  names"]
    for number, fragment in enumerate(layout.fragments):
        names = [printable(tensor.name) for tensor in fragment.tensors]
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        lines.append(
            f"{number:<10}{MergeMode(fragment.merge_mode).name.lower():<7}{len(names):>8}{fragment.numel:>16,}"
            f"  {', '.join(names[:SHOWN_NAMES])}{more}"
        )
    lines.append(
        f"{layout.num_fragments} fragments, {len(layout.tensor_names())} tensors, {layout.numel:,} values"
    )
    lines.append(f"fingerprint {layout.fingerprint().hex()}")
    return "\n".join(lines)


def as_dict(layout: Layout) -> dict[str, Any]:
    """The same for programs."""
    return {
        "fingerprint": layout.fingerprint().hex(),
        "numel": layout.numel,
        "fragments": [
            {
                "id": number,
                "merge_mode": MergeMode(fragment.merge_mode).name.lower(),
                "numel": fragment.numel,
                "tensors": [
                    {"name": tensor.name, "numel": tensor.numel, "shape": tensor.shape}
                    for tensor in fragment.tensors
                ],
            }
            for number, fragment in enumerate(layout.fragments)
        ],
    }
