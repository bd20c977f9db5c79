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
from tests.client.recording import Clock, events, generation_ends, phases

import leakline
from leakline.integrations import compiled_functions, savers_and_loggers
from leakline.integrations.plain_loop import Loop


class Compiled:
    """Stands for a compiled function: the first call traces the program's function, later ones do not call it."""

    def __init__(self, function: Callable[..., Any], constant: Any = None) -> None:
        functools.update_wrapper(self, function)
        self.function, self.constant, self.is_traced = function, constant, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_traced:
            self.is_traced = True
            self.result = self.function(*args, **kwargs)
        return self.result

    def lower(self, *args: Any) -> str:
        if args:
            self(*args)
        return f"lowered {self.function.__name__}"


def jit(function: Any = None, **options: Any) -> Any:
    return Compiled(function, **options) if function else lambda f: Compiled(f, **options)


def vjp(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def eval_shape(function: Any, *args: Any) -> str:
    assert type(function) is Compiled
    return f"shape of {args}"


hidden: list[str] = []


def grad(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: sys.modules["jax._src.api"].vjp(function, *args)


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch, offline: leakline.Run, loop: Loop, clock: Clock) -> Any:
    """Watch the stand-in for JAX."""
    for name, functions in (
        ("jax", {"jit": jit, "pmap": jit, "grad": grad}),
        ("jax._src.api", {"vjp": vjp, "eval_shape": eval_shape}),
        ("jax._src.core", {"trace_state_clean": lambda: True}),
        ("jax._src.traceback_util", {"register_exclusion": hidden.append}),
        ("jax._src.source_info_util", {"register_exclusion": hidden.append}),
    ):
        module = types.ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    jax: Any = sys.modules["jax"]
    for each in (vjp, eval_shape):
        monkeypatch.setattr(each, "__module__", "jax._src.api")
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
            clock.now += seconds

    return steps


def test_steps_that_compute_gradients_are_generations(
    train: Any, jax: Any, offline: leakline.Run
) -> None:
    jax.jit(eval_step)(1.0)
    train(75)
    offline.finish()
    # The steps that are timed belong to the first generation.
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
            clock.now += 0.1
    train(1)
    offline.finish()
    assert phases()[:4] == ["train", "eval_step", "train", "eval_step"]


@pytest.mark.parametrize(("name", "phase"), [("predict", "predict"), ("forward", "evaluation")])
def test_one_long_call_is_a_phase_from_its_second_time(
    train: Any, jax: Any, clock: Clock, offline: leakline.Run, name: str, phase: str
) -> None:
    def function(value: float) -> float:
        return value

    function.__name__ = name
    predict = jax.jit(function)
    for _ in range(2):
        train(5)
        predict(1.0)
        clock.now += 1.0
    train(1)
    offline.finish()
    assert phases()[:2] == ["train", phase]


def test_a_function_that_is_called_in_each_step_is_no_phase(
    train: Any, jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    augment = jax.jit(eval_step)
    augment(1.0)
    clock.now += 60.0
    for number in range(20):
        augment(1.0)
        if number == 5:
            # After a pause within a step, the function is taken for a phase, but only once.
            clock.now += 2.0
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
    clock.now += 1.0
    short(1.0)
    with offline.phase("own"):
        pass
    offline.finish()
    assert phases() == ["train", "own"]


def test_a_function_that_is_compiled_at_each_step_is_known(
    jax: Any, clock: Clock, offline: leakline.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX traces it only once."""
    jax.jit(train_step)(2.0)
    monkeypatch.setattr(Compiled, "__call__", lambda self, value: 2 * value)
    for _ in range(75):
        assert jax.jit(train_step)(2.0) == 4.0
        clock.now += 0.1
    offline.finish()
    assert len(generation_ends()) == 7


def test_gradients_outside_of_compiled_functions_are_steps(
    jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    for _ in range(75):
        assert jax.grad(loss)(3.0) == 9.0
        clock.now += 0.1
    offline.finish()
    # The steps that are timed belong to the first generation.
    assert len(generation_ends()) == 7


def test_a_step_that_was_traced_before_the_loop_is_known(
    train: Any, jax: Any, clock: Clock, offline: leakline.Run
) -> None:
    """Tracing alone is no step. A step within another function is not traced again."""
    step = jax.jit(train_step)
    step.lower(2.0)
    outer = jax.jit(lambda value: step(value))
    for _ in range(75):
        assert outer(2.0) == 4.0
        clock.now += 0.1
    offline.finish()
    assert len(generation_ends()) == 7


def test_an_interrupt_while_we_record_ends_nothing(
    train: Any, jax: Any, loop: Loop, offline: leakline.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "begins_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(1)
    train(75)
    offline.finish()
    assert len(generation_ends()) >= 7


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
    assert sys.modules["jax._src.api"].eval_shape(compiled, 1.0) == "shape of (1.0,)"
    assert set(hidden) == {compiled_functions.__file__}
    assert pickle.loads(pickle.dumps(functools.partial(jax.jit, constant=1))).func is jax.jit
    assert repr(compiled).startswith("<tests.client")
    assert type(pickle.loads(pickle.dumps(compiled))) is Compiled

    class Model:
        @jax.jit(constant=3)
        def predict(self, known: int = 0, function: int = 0) -> int:
            return 7 + known + function

    assert Model().predict(known=1, function=2) == 10
    assert Model.predict.constant == 3
