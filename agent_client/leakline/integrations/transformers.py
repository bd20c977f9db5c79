"""Transformers: ``Trainer(..., callbacks=[LeaklineCallback(project="mine")])``.

Phases: ``train``, ``validation``, ``save``, and ``epoch_end`` for the work of callbacks at the end of an epoch. A
generation is a hundredth of the planned steps, ``steps`` steps, or an epoch (``epochs=True``).
"""

from __future__ import annotations

from typing import Any, Final, Unpack

from leakline.integrations.training import Place, Training, several

from .training import Options, bracket, calling, checked, checked_steps, missing

try:
    from transformers.trainer_callback import CallbackHandler, TrainerCallback
except ImportError as error:
    raise missing("transformers", "transformers", "transformers", error) from None

# Number of generations into which ``train`` is divided. Fewer are enough to see a trend, and more would only add
# snapshots.
GENERATIONS: Final = 100


class LeaklineCallback(TrainerCallback):
    """Callback that records ``train``. Keywords are passed to `leakline.init`; in an existing run, they are ignored."""

    def __init__(
        self,
        project: str | None = None,
        *,
        steps: int | None = None,
        epochs: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._steps, self._epochs = checked_steps(steps), epochs
        given = checked("LeaklineCallback", {**options, "project": project})
        self._training = Training("transformers", given)
        self._last: _Last | None = None
        # Steps per generation in the current call of ``train``.
        self._each = 1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last, self._each = None, self._steps or max(1, state.max_steps // GENERATIONS)
        place, total = Place(), None
        with self._training.guard:
            handler = calling(CallbackHandler)
            if handler is not None:
                self._last = _Last(self._training)
                bracket(handler, self, self._last)
            place = Place(args.process_index, args.world_size)
            total = state.num_train_epochs if self._epochs else -(-state.max_steps // self._each)
        unit = "epoch" if self._epochs else "step" if self._each == 1 else "generation"
        note = None if self._epochs else several(self._each, "steps")
        self._training.begin(unit, total or None, ("train",), place, note)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.is_on and self._epochs:
            self._training.generation(round(state.epoch or 0))
            self._training.phase("train")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.is_on:
            if not self._epochs:
                self._training.count(state.global_step // self._each)
            self._training.phase("train")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.is_on:
            self._training.phase("epoch_end")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # No hook is called before an evaluation, so the phase begins at the evaluation's first step.
        if self._training.is_on:
            self._training.phase("validation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.is_on:
            self._training.phase("validation")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.is_on:
            self._training.phase("save")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training.is_on:
            self._training.rest()
            if self._last is None:
                self._training.end()


class _Last(TrainerCallback):
    """Callback that runs after the user's callbacks, so that ``save`` begins only after their work."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._maybe_saves(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._maybe_saves(control)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._maybe_saves(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._maybe_saves(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.end()

    def _maybe_saves(self, control: Any) -> None:
        due = control.should_log or control.should_evaluate
        if self._training.is_on and control.should_save and not due:
            self._training.phase("save")
