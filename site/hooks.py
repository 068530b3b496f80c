"""Adds the pages that are made from `spec/` and from the commands to the documentation, in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import commands  # noqa: E402  # the two folders have to be on the path first

from codegen import failures  # noqa: E402
from codegen.pages import pages  # noqa: E402
from codegen.parts import load  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Render the generated pages."""
    for each in pages(load(ROOT / "spec")):
        files.append(File.generated(config, each.path, content=each.text))
    messages = failures.page(failures.load(HERE / "failures.yaml"))
    files.append(File.generated(config, "errors.md", content=messages))
    for path, text in commands.pages():
        files.append(File.generated(config, path, content=text))
    return files
