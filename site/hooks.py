"""Adds the pages that are rendered from `spec/` to the documentation, in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from codegen.pages import pages  # noqa: E402  # the project's root has to be on the path first
from codegen.parts import load  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Render the protocol section."""
    for each in pages(load(ROOT / "spec")):
        files.append(File.generated(config, each.path, content=each.text))
    return files
