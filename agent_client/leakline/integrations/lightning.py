"""Lightning: ``Trainer(callbacks=[LeaklineCallback(project="mine")])``.

Phases: ``train``, ``validation``, ``save``, and ``epoch_end`` for the work of callbacks and the module at the end of an
epoch. A generation is an epoch, or ``steps`` optimizer steps.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any, Unpack

from leakline.integrations.training import Place, Training, several
from leakline.settings import start_ticks

from .training import Options, bracket, checked, checked_steps, missing

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
        given = checked("LeaklineCallback", {**options, "project": project})
        self._training = Training("lightning", given)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            place, total = Place(), None
            with self._training.guard:
                bracket(trainer, self)
                place, total = _place(trainer), self._planned(trainer)
            unit = "epoch" if self._steps is None else "step" if self._steps == 1 else "generation"
            note = several(self._steps, "optimizer steps")
            self._training.begin(unit, total, ("train",), place, note)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training.is_on:
            if self._steps is None:
                self._training.generation(trainer.current_epoch)
            self._training.phase("train")

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._training.is_on:
            self._count(trainer.global_step)
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

    def _count(self, step: int) -> None:
        if self._steps is not None:
            self._training.count(step // self._steps)

    def _planned(self, trainer: Any) -> int | None:
        most = trainer.max_epochs if self._steps is None else trainer.max_steps
        if most is None or most < 1:
            return None
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
