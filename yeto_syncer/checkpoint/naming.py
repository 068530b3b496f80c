"""Which tensor is where in a checkpoint: by a layout file or a model, compared with what the file proves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yeto_proto.files import check_fingerprint, check_layout
from yeto_proto.layout import Layout, Pattern, build_layout
from yeto_proto.layout_file import read_layout


@dataclass(frozen=True, slots=True)
class Source:
    """The file of --layout, and how the learners dealt a safetensors model out; a layout file needs none of
    that. `num_fragments` None means: as many as the checkpoint has."""

    path: Path
    num_fragments: int | None = None
    pattern: Pattern = "binpack"
    matrix_merge: Literal["rda", "iso"] = "rda"
    avg_name_regex: str | None = None

    def layout(self, count: Callable[[], int]) -> Layout:
        """The layout for a checkpoint of `count()` fragments, which is asked for when it is needed.

        Raises OSError, ValueError (BadArgument is one) for a file that names no tensors, and whatever `count`
        raises.
        """
        found = read_layout(self.path)
        if isinstance(found, Layout):
            return found
        return build_layout(
            found,
            self.num_fragments or count(),
            self.pattern,
            matrix_merge=self.matrix_merge,
            avg_name_regex=self.avg_name_regex,
        )


def prove(layout: Layout, numels: Sequence[int], fingerprint: bytes | None) -> bool:
    """Compare a layout with what a file records; False when only sizes could be compared.

    Raises SnapshotMismatch for the first difference.
    """
    check_layout(numels, layout.wire())
    check_fingerprint(fingerprint, layout.fingerprint())
    return fingerprint is not None
