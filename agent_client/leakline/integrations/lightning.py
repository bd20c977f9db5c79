"""Lightning: ``Trainer(callbacks=[LeaklineCallback(project="mine")])``.

Phases: ``train``, ``validation``, ``save``, and ``epoch_end`` for the work of callbacks and the module at the end of an
epoch. A generation is an epoch, or ``steps`` optimizer steps. If the program has not added the callback itself, few
epochs are divided into PARTS generations each; the validation belongs to the last part.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any, Unpack

from leakline.integrations.training import Place, Training, several
from leakline.settings import start_ticks

from .training import OF_AN_EPOCH, PARTS, Options, bracket, checked, checked_steps, missing

try:
    # The same code has two names, and a program uses one of them.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as error:
    raise missing("lightning", "lightning", "lightning", error) from None


class LeaklineCallback(Callback):
    """Callback that records ``fit``. Keywords are passed to `leakline.init`; in an existing run, they are ignored."""

    def __init__(
        self, project: str | None = None, *, steps: int | None = None, **options: Unpack[Options]
    ) -> None:
        self._steps = checked_steps(steps)
        # Batches in each part of an epoch, if epochs are divided.
        self._part: int | None = None
        given = checked("LeaklineCallback", {**options, "project": project})
        self._training = Training("lightning", given)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._training.leaves_run_open:
            # The number of batches, by which epochs are divided, is known later.
            self._training.expect()
        elif stage == "fit":
            self._begin(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training.leaves_run_open:
            self._begin(trainer)

    def _begin(self, trainer: Any) -> None:
        place, total, self._part = Place(), None, None
        with self._training.guard:
            bracket(trainer, self)
            if self._steps is None:
                epochs, batches = trainer.max_epochs, trainer.num_training_batches
                self._part = self._training.batches_of_a_part(epochs, batches)
            place, total = _place(trainer), self._planned(trainer)
        whole = self._steps is None and self._part is None
        unit = "epoch" if whole else "step" if self._steps == 1 else "generation"
        note = OF_AN_EPOCH if self._part is not None else several(self._steps, "optimizer steps")
        self._training.begin(unit, total, ("train",), place, note)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training.is_on:
            if self._steps is None:
                self._training.generation(trainer.current_epoch * (PARTS if self._part else 1))
            self._training.phase("train")

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._training.is_on:
            # The generation of the first part has begun with the epoch.
            if self._part is not None and batch_idx >= self._part:
                self._training.count(trainer.current_epoch * PARTS + batch_idx // self._part)
            elif self._steps is not None:
                self._training.count(trainer.global_step // self._steps)
            self._training.phase("train")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training.is_on and not trainer.sanity_checking:
            self._training.phase("validation")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        if self._training.is_on:
            self._training.phase("save")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._training.is_on:
            self._training.phase("epoch_end")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._training.is_on:
            self._training.rest()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        # Lightning calls no other hook after an exception.
        self._training.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._training.end()

    def _planned(self, trainer: Any) -> int | None:
        most = trainer.max_epochs if self._steps is None else trainer.max_steps
        if most is None or most < 1:
            return None
        if self._part is not None:
            return int(most) * PARTS
        return int(most) if self._steps is None else -(-int(most) // self._steps)


def _place(trainer: Any) -> Place:
    if trainer.world_size < 2:
        return Place()
    return Place(trainer.global_rank, trainer.world_size, _launch(trainer))


def _launch(trainer: Any) -> str | None:
    """Return an id that all ranks on this machine share, or None if Lightning did not start the ranks.

    The id is derived from the process that started the ranks.
    """
    launcher = trainer.strategy.launcher
    if type(launcher).__name__ != "_SubprocessScriptLauncher" or trainer.num_nodes > 1:
        return None
    pid = os.getpid() if trainer.local_rank == 0 else os.getppid()
    key = f"lightning {pid} {start_ticks(pid)} {os.environ.get('MASTER_PORT')}"
    return "ranks-" + hashlib.sha256(key.encode()).hexdigest()[:16]
