"""The Hugging Face `Trainer` as a learner (extra `yeto[hf]`).

learner = LearnerCallback("host:29400", learner_id=0)
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[learner])
trainer.train()          # until the syncer ends the run; the model then holds the final parameters
trainer.save_model()
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final, Unpack

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "yeto_learner.hf needs transformers; install it with: pip install 'yeto[hf]'"
    ) from error

from .channel import Address
from .options import LearnerOptions
from .torch import TorchLearner
from .torch.schedule import rebuild_schedule
from .torch.tensors import NameFilter

__all__ = ["RECORD_NAME", "LearnerCallback"]

log = logging.getLogger(__name__)

RECORD_NAME: Final = "yeto_resume.npz"  # in each checkpoint folder of the Trainer


# The base class is Any for the type checker, because transformers is optional.
class LearnerCallback(TrainerCallback):  # type: ignore[misc]
    """Makes the model of a `Trainer` a learner.

    The arguments are those of `TorchLearner`.  Training ends when the syncer ends the run, so give the
    Trainer a `max_steps` that it does not reach before; if it does, the final parameters are waited for.  The
    weight of this learner's progress is counted in tokens with `include_num_input_tokens_seen`, else in
    sequences; it must be the same in all learners.  Each checkpoint of the Trainer gets a resume record, and
    `train(resume_from_checkpoint=...)` out of `output_dir` finds it there; `resume` names another place.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        name_filter: NameFilter | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        self._address, self._name_filter, self._options = address, name_filter, options
        self._tokens_seen = 0
        self.learner: TorchLearner | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Connect, and install the first parameters.  Raises what `TorchLearner.open` raises."""
        options = self._options.copy()
        first = bool(state.is_world_process_zero)
        if state.global_step > 0:
            rebuild_schedule(parts.get("lr_scheduler"), state.global_step, quiet=not first)
            record = Path(args.output_dir) / f"checkpoint-{state.global_step}" / RECORD_NAME
            if options.get("resume") is None and record.exists():
                options["resume"] = record
            elif options.get("resume") is None:
                log.warning(
                    "there is no resume record at %s; the syncer's values replace the local ones", record
                )
        self._tokens_seen = int(state.num_input_tokens_seen)
        self.learner = TorchLearner(
            parts["model"],
            self._address,
            name_filter=self._name_filter,
            scheduler=parts.get("lr_scheduler"),
            **options,
        )
        self.learner.open()
        control.should_training_stop = control.should_training_stop or self.learner.done

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """The step boundary.  Raises what `TorchLearner.step` raises."""
        if self._open.step(self._tokens(args, state)):
            control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Put the resume record beside the parameters it belongs to."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if folder.is_dir():
            self._open.save_state(folder / RECORD_NAME)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """Install the final parameters.  Raises what `TorchLearner.finish` raises."""
        learner = self._open
        if not learner.done and state.is_world_process_zero:
            log.warning(
                "the Trainer stopped at step %d, before the end of the run: this learner only waits now; "
                "give it a larger max_steps",
                state.global_step,
            )
        try:
            learner.finish()
        finally:
            self.close()

    def close(self) -> None:
        """Give sockets and threads back when training was broken off by an exception."""
        if self.learner is not None:
            self.learner.close()

    @property
    def _open(self) -> TorchLearner:
        if self.learner is None:
            raise RuntimeError("the callback has seen no on_train_begin; add it before Trainer.train()")
        return self.learner

    def _tokens(self, args: TrainingArguments, state: TrainerState) -> int:
        """Of this rank, since the last boundary; the learner adds up the ranks."""
        if args.include_num_input_tokens_seen == "no":
            return int(args.train_batch_size) * int(args.gradient_accumulation_steps)
        seen, before = int(state.num_input_tokens_seen), self._tokens_seen
        self._tokens_seen = seen
        return seen - before if state.is_world_process_zero else 0  # the Trainer has added them up
