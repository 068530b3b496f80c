"""Checkpoints, marker, final state and tape of one process: written when they must be, seen afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.simulation.audit import Context, Handlers, Part, require
from tests.simulation.syncer_parts import Disk
from yeto_proto._generated.messages import PullReq
from yeto_proto.files.model import Snapshot
from yeto_syncer.core.effects import (
    AppendTape,
    Deliver,
    Exit,
    Save,
    SaveKind,
    Send,
    WriteFinalState,
    WriteMarker,
)
from yeto_syncer.tape_file import faults, kind_of


class Files(Part):
    """Durable before visible, the last step saved once, and a marker only beside a finished run."""

    def __init__(self, context: Context, disk: Disk, resumed: Snapshot | None) -> None:
        self._context = context
        self._config = context.config
        self._disk = disk
        self._durable = -1 if resumed is None else resumed.global_step
        self._terminal = False
        self._last_saves = 0
        self._exited = False

    def decided(self) -> Handlers:
        return {AppendTape: self._on_tape, Save: self._on_save}

    def performed(self) -> Handlers:
        return {
            Deliver: self._on_deliver,
            Send: self._on_send,
            WriteMarker: self._on_marker,
            WriteFinalState: self._on_final_state,
            Exit: self._on_exit,
        }

    def landed(self, save: Save) -> None:
        """A checkpoint is durable."""
        require(save.snapshot.global_step >= self._durable, "a checkpoint went back")
        self._durable = save.snapshot.global_step
        self._terminal |= save.kind is SaveKind.TERMINAL

    def _on_save(self, effect: Save) -> None:
        if effect.snapshot.global_step == self._config.total_steps:
            self._last_saves += 1
            require(self._last_saves == 1, "the state of the last step is written a second time")
            require(effect.kind in (SaveKind.TERMINAL, SaveKind.STOP), f"{effect.kind} of the last step")

    def _on_tape(self, effect: AppendTape) -> None:
        record: Mapping[str, Any] = effect.record
        self._context.tally[f"tape {kind_of(record)}"] += 1
        wrong = faults(record, stamped=False)
        require(not wrong, f"a record is not as the specification says: {wrong}")

    def _on_deliver(self, delivery: Deliver) -> None:
        if delivery.final:
            require(
                self._config.checkpoint_path is None or self._terminal,
                "the final cut is sent before the terminal checkpoint is durable",
            )
            return
        if self._config.per_round_checkpoint:
            for each in delivery.fragments:
                require(self._durable >= each.version, f"version {each.version} is seen before it is durable")

    def _on_send(self, effect: Send) -> None:
        if isinstance(effect.message, PullReq) and self._config.checkpoint_path is not None:
            require(self._disk.marker is None, "rounds go on beside a marker")

    def _on_marker(self, effect: WriteMarker) -> None:
        require(self._terminal, "a marker before the terminal checkpoint is durable")
        require(effect.step == self._config.total_steps == self._durable, "a marker of another step")

    def _on_final_state(self, effect: WriteFinalState) -> None:
        require(self._config.checkpoint_path is None or self._terminal, "a final state before its checkpoint")

    def _on_exit(self, effect: Exit) -> None:
        require(not self._exited, "a second exit")
        self._exited = True
        complete = effect.code == 0 and "training complete" in effect.message
        if complete:
            snapshot = self._disk.snapshot
            if self._config.checkpoint_path is not None:
                require(snapshot is not None, "a complete run left no checkpoint")
                assert snapshot is not None
                require(
                    snapshot.global_step == self._config.total_steps, "the checkpoint is not the last step"
                )
            if self._config.mark_final_checkpoint:
                require(self._disk.marker == self._config.total_steps, "a complete run left no marker")
        elif effect.code == 1 and self._config.mark_final_checkpoint:
            require(self._disk.marker is None, "a failed run left a marker")
