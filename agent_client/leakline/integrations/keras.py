"""Keras 3: ``model.fit(..., callbacks=[LeaklineCallback(project="mine")])``.

Phases: ``train``, ``validation``, and ``epoch_end`` for the work of callbacks at the end of an epoch (mostly saving). A
generation is an epoch, or ``steps`` batches. If the program has not added the callback itself, and its first ``fit``
has 2 to FEW_EPOCHS epochs, each is divided into PARTS generations, because a verdict needs more of them; the validation
belongs to the last part.
"""

from __future__ import annotations

from typing import Any, Unpack

from leakline.integrations.training import Training, several

from .training import OF_AN_EPOCH, PARTS, Options, bracket, calling, checked, checked_steps, missing

try:
    from keras.callbacks import Callback, CallbackList
except ImportError as error:
    raise missing("keras", "keras", "keras", error) from None


class LeaklineCallback(Callback):
    """Callback that records ``fit``. Keywords are passed to `leakline.init`; in an existing run, they are ignored."""

    def __init__(
        self, project: str | None = None, *, steps: int | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__()
        self._steps, self._step = checked_steps(steps), 0
        # Batches in each part of an epoch, if epochs are divided.
        self._part: int | None = None
        given = checked("LeaklineCallback", {**options, "project": project})
        self._training = Training("keras", given)
        self._last: _Last | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        total, self._step, self._epoch = None, 0, 0
        self._last = None
        with self._training.guard:
            among = calling(CallbackList)
            if among is not None:
                self._last = _Last(self._training)
                bracket(among, self, self._last)
            planned = self.params or {}
            self._part = None
            if self._steps is None:
                self._part = self._training.batches_of_a_part(
                    planned.get("epochs"), planned.get("steps")
                )
            total = self._planned()
        note = OF_AN_EPOCH if self._part is not None else several(self._steps, "batches")
        whole = self._steps is None and self._part is None
        unit = "epoch" if whole else "step" if self._steps == 1 else "generation"
        self._training.begin(unit, total, ("train",), note=note)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._training.is_on:
            if self._steps is None:
                self._epoch = epoch
                self._training.count(epoch if self._part is None else epoch * PARTS)
            self._training.phase("train")

    # This class has no hook for the end of a batch: with such a hook, Keras could no longer call these hooks on a
    # separate thread.
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._training.is_on and self._part is not None:
            self._training.count(self._epoch * PARTS + batch // self._part)
            self._training.phase("train")
        elif self._training.is_on and self._steps is not None:
            self._training.count(self._step // self._steps)
            self._training.phase("train")
            self._step += 1

    def on_test_begin(self, logs: Any = None) -> None:
        if self._training.is_on:
            self._training.phase("validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._training.is_on:
            self._training.phase("epoch_end")

    def on_train_end(self, logs: Any = None) -> None:
        if self._training.is_on:
            self._training.rest()
            if self._last is None:
                self._training.end()

    def _planned(self) -> int | None:
        epochs: int | None = (self.params or {}).get("epochs")
        batches: int | None = (self.params or {}).get("steps")
        if self._part is not None and epochs is not None:
            return epochs * PARTS
        if self._steps is None or epochs is None or batches is None:
            return epochs if self._steps is None else None
        return -(-epochs * batches // self._steps)


class _Last(Callback):
    """Callback that ends the run after the user's callbacks have run."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_train_end(self, logs: Any = None) -> None:
        self._training.end()
