"""Generations and phases in loops that call compiled functions, with a small stand-in for JAX.

`tests/integrations/test_plain_loops.py` does this with JAX and TensorFlow.
"""

from __future__ import annotations

import functools
import pickle
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.recording import events, generation_ends, recorded

import leakline
from leakline.integrations import compiled_functions, savers_and_loggers
from leakline.integrations.plain_loop import Loop


class Clock:
    """A clock that a test advances."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Compiled:
    """What the stand-in for ``jax.jit`` returns: the first call traces the function, later ones do not call it."""

    def __init__(self, function: Callable[..., Any], constant: Any = None) -> None:
        functools.update_wrapper(self, function)
        self.function, self.constant, self.is_traced = function, constant, False

    def __call__(self, *args: Any) -> Any:
        if not self.is_traced:
            self.is_traced = True
            self.result = self.function(*args)
        return self.result

    def lower(self) -> str:
        return f"lowered {self.function.__name__}"


def jit(function: Any = None, **options: Any) -> Any:
    return Compiled(function, **options) if function else lambda f: Compiled(f, **options)


def vjp(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def grad(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: sys.modules["jax._src.api"].vjp(function, *args)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Loop:
    return Loop(lambda: True, clock)


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch, offline: leakline.Run, loop: Loop, clock: Clock) -> Any:
    """Watch the stand-in for JAX."""
    for name in ("jax", "jax._src.api", "jax._src.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    jax: Any = sys.modules["jax"]
    jax.jit, jax.pmap, jax.grad = jit, jit, grad
    sys.modules["jax._src.api"].vjp = vjp  # type: ignore[attr-defined]
    sys.modules["jax._src.core"].trace_state_clean = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setattr(vjp, "__module__", "jax._src.api")
    compiled_functions.watch_jax(loop, clock)
    return jax


def loss(value: float) -> float:
    return value * value


def train_step(value: float) -> float:
    return float(sys.modules["jax"].grad(loss)(value))


def eval_step(value: float) -> float:
    return value


@pytest.fixture
def train(jax: Any, clock: Clock) -> Callable[[int], None]:
    step = jax.jit(train_step)

    def steps(count: int, seconds: float = 0.1) -> None:
        for _ in range(count):
            assert step(2.0) == 4.0
            clock.seconds += seconds

    return steps


def phases() -> list[str | None]:
    return [s.phase for s in recorded() if s.kind == "phase_end"]


def test_steps_that_compute_gradients_are_generations(
    train: Any, jax: Any, offline: leakline.Run
) -> None:
    jax.jit(eval_step)(1.0)
    train(75)
    offline.finish()
    # The first steps are timed, and belong to the first one.
    assert len(generation_ends()) == 7
    assert [e.data["text"] for e in events("note")] == [
        "a generation is 10 training steps, found in the program's calls"
    ]
    assert set(phases()) == {"train"}


def test_a_row_of_other_calls_is_a_phase_from_its_second_time(
    train: Any, jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    evaluate = jax.jit(eval_step)
    for _ in range(2):
        train(5)
        for _ in range(8):
            evaluate(1.0)
            clock.seconds += 0.1
    train(1)
    offline.finish()
    assert phases()[:4] == ["train", "eval_step", "train", "eval_step"]


def test_a_function_that_is_called_in_each_step_is_no_phase(
    train: Any, jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    augment = jax.jit(eval_step)
    augment(1.0)
    clock.seconds += 60.0
    for number in range(20):
        augment(1.0)
        if number == 5:
            # A pause within a step, after which the function was a phase once.
            clock.seconds += 2.0
            augment(1.0)
            train(1)
            augment(1.0)
        train(1)
    offline.finish()
    assert phases().count("eval_step") <= 2


def test_a_function_of_microseconds_is_ignored(
    monkeypatch: pytest.MonkeyPatch, train: Any, jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    monkeypatch.setattr(compiled_functions, "IGNORED_AFTER", 10)
    short = jax.jit(eval_step)
    train(1)
    for _ in range(12):
        short(1.0)
    clock.seconds += 1.0
    short(1.0)
    with offline.phase("own"):
        pass
    offline.finish()
    assert phases() == ["train", "own"]


def test_gradients_outside_of_compiled_functions_are_steps(
    jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    for _ in range(75):
        assert jax.grad(loss)(3.0) == 9.0
        clock.seconds += 0.1
    offline.finish()
    # The first steps are timed, and belong to the first one.
    assert len(generation_ends()) == 7


def test_functions_on_other_threads_are_not_counted(
    train: Any, jax: Any, offline: leakline.Run
) -> None:
    train(1)
    step = jax.jit(train_step)
    other = threading.Thread(target=lambda: [step(2.0) for _ in range(40)])
    other.start()
    other.join()
    offline.finish()
    assert len(generation_ends()) == 1


def test_saving_is_a_phase(
    train: Any, loop: Loop, offline: leakline.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("orbax.checkpoint.checkpoint_manager")

    class CheckpointManager:
        def save(self, step: int) -> int:
            return step and self.save(step - 1)

    CheckpointManager.__module__ = CheckpointManager.save.__module__ = module.__name__
    module.CheckpointManager = CheckpointManager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    savers_and_loggers.watch(module.__name__, loop)
    train(1)
    CheckpointManager().save(2)
    train(1)
    offline.finish()
    assert phases()[:2] == ["train", "checkpoint"]
    assert "checkpoint" not in phases()[2:]


def test_a_replaced_function_is_like_the_original(jax: Any) -> None:
    compiled = jax.jit(eval_step)
    assert compiled.__name__ == "eval_step"
    assert compiled.__wrapped__ is eval_step
    assert compiled.lower() == "lowered eval_step"
    assert repr(compiled).startswith("<tests.client")
    assert type(pickle.loads(pickle.dumps(compiled))) is Compiled

    class Model:
        @jax.jit(constant=3)
        def predict(self) -> int:
            return 7

    assert Model().predict() == 7
    assert Model.predict.constant == 3
