"""A progress bar that counts bytes, as all commands and the learner draw it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

__all__ = ["byte_bar"]


def byte_bar(console: Console, *, auto_refresh: bool = True) -> Progress:
    """The bar, not started; it leaves nothing behind when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        auto_refresh=auto_refresh,
        transient=True,
    )
