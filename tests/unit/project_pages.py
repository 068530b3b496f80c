"""The reference pages of this project, rendered once in a process of the tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from codegen.pages import pages
from codegen.parts import load

ROOT = Path(__file__).parents[2]


@functools.cache
def project_pages() -> Mapping[str, str]:
    """The text of each page by its path, as `protocol/errors.md`."""
    return MappingProxyType({each.path: each.text for each in pages(load(ROOT / "spec"))})
