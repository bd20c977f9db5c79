"""Reports to the `Loop` what training loops of JAX and TensorFlow do, for programs without callbacks.

Such a loop calls compiled functions. One that computes gradients while it is traced is a training step each time that
the program calls it. Gradients outside of compiled functions are training steps as well. Calls of other compiled
functions are a phase with the name of the function, as ``eval_step``, if SHORTEST_STEP_SECONDS pass from the first of
them to the next training step.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

from .plain_loop import SHORTEST_STEP_SECONDS, Loop, replace

# A function that has been called so often without being a training step or a phase is too short for one. Its calls are
# not reported any more.
IGNORED_AFTER: Final = 10_000


class _Known:
    """What is known of a compiled function: whether it computes gradients, and whether its calls are a phase."""

    __slots__ = ("calls", "is_phase", "phase", "trains")

    def __init__(self, name: object) -> None:
        self.calls = 0
        # Libraries call their wrappers ``_call`` or ``<lambda>``.
        is_name = isinstance(name, str) and name[:1].isalpha()
        self.phase = str(name) if is_name else "evaluation"
        self.trains = self.is_phase = False


class _Thread:
    """A thread that calls compiled functions."""

    __slots__ = ("outermost", "phase", "since")

    def __init__(self) -> None:
        # The function that the program has called and that has not returned yet.
        self.outermost: _Known | None = None
        # When the first function that does not train was called after the newest training step; never before the first
        # step. The newest of these functions whose calls are a phase.
        self.since: float | None = math.inf
        self.phase: _Known | None = None


class _Threads(threading.local):
    def __init__(self) -> None:
        self.this = _Thread()


class _Calls:
    """Calls compiled functions for the program, and reports what is known of them to the loop."""

    def __init__(
        self, loop: Loop, is_tracing: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._loop, self._is_tracing, self._clock = loop, is_tracing, clock
        self._threads = _Threads()

    def call(self, known: _Known, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a compiled function."""
        if known.calls > IGNORED_AFTER:
            return function(*args, **kwargs)
        thread = self._threads.this
        if thread.outermost is not None:
            return function(*args, **kwargs)
        if known.trains:
            return self._train(thread, known, function, *args, **kwargs)
        now, thread.outermost = self._clock(), known
        if thread.since is None:
            thread.since = now
        elif now - thread.since >= SHORTEST_STEP_SECONDS:
            known.is_phase = True
        if known.is_phase:
            known.calls, thread.phase = 0, known
            if not self._loop.is_in(known.phase):
                self._loop.report(self._loop.computes, known.phase)
        known.calls += 1
        try:
            return function(*args, **kwargs)
        finally:
            thread.outermost = None
            if known.trains:
                # It has just been traced.
                self._loop.report(self._loop.begins_step)
                self._loop.report(self._loop.stepped)

    def differentiate(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that computes gradients, or that begins to."""
        thread = self._threads.this
        if thread.outermost is not None:
            thread.outermost.trains = True
        elif not self._is_tracing():
            return self._train(thread, _GRADIENTS, function, *args, **kwargs)
        return function(*args, **kwargs)

    def _train(
        self,
        thread: _Thread,
        known: _Known,
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if thread.phase is not None and thread.since is not None:
            # A phase of the same length at the next time, or none.
            thread.phase.is_phase = self._clock() - thread.since >= SHORTEST_STEP_SECONDS
        thread.outermost, thread.since, thread.phase = known, None, None
        self._loop.report(self._loop.begins_step)
        try:
            return function(*args, **kwargs)
        finally:
            thread.outermost = None
            self._loop.report(self._loop.stepped)


_GRADIENTS = _Known("gradients")


class _Compiled:
    """A compiled function of JAX that reports its calls, and otherwise behaves as the function that it calls."""

    def __init__(self, function: Any, calls: _Calls) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = getattr(function, "__wrapped__", function)
        self._function, self._calls = function, calls
        self._known = _Known(getattr(function, "__name__", None))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._known.calls > IGNORED_AFTER:
            return self._function(*args, **kwargs)
        return self._calls.call(self._known, self._function, *args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> Any:
        # The copy is the function itself, because another process may have no Leakline.
        return operator.itemgetter(0), ((self._function,),)


def watch_jax(loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
    """Replace the functions of JAX that compile and differentiate. It has been imported."""
    jax: Any = sys.modules["jax"]
    api: Any = sys.modules["jax._src.api"]
    is_at_rest: Callable[[], bool] = sys.modules["jax._src.core"].trace_state_clean
    calls = _Calls(loop, lambda: not is_at_rest(), clock)

    def compiling(compile_: Any) -> Any:
        @functools.wraps(compile_)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            made = compile_(*args, **kwargs)
            # Without a function, JAX returns a decorator.
            return (
                _Compiled(made, calls)
                if hasattr(made, "lower")
                else lambda f: compiled(f, **kwargs)
            )

        return compiled

    def differentiating(function: Any) -> Any:
        @functools.wraps(function)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            return calls.differentiate(function, *args, **kwargs)

        return differentiated

    jax.jit, jax.pmap = compiling(jax.jit), compiling(jax.pmap)
    # ``grad`` and ``value_and_grad`` call one of these.
    for name in ("vjp", "_vjp"):
        if hasattr(api, name):
            replace(api, name, differentiating)


def watch_tensorflow(loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
    """Replace the methods of TensorFlow that call compiled functions and differentiate. It has been imported."""
    functions: Any = sys.modules[
        "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    ]
    tapes: Any = sys.modules["tensorflow.python.eager.backprop"]
    is_at_rest: Callable[[], bool] = sys.modules["tensorflow"].executing_eagerly
    calls = _Calls(loop, lambda: not is_at_rest(), clock)
    known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()

    def calling(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (found := known.get(self)) is None:
                found = known[self] = _Known(getattr(self, "__name__", None))
            return calls.call(found, method, self, *args, **kwargs)

        return call

    def differentiating(method: Any) -> Any:
        @functools.wraps(method)
        def gradient(*args: Any, **kwargs: Any) -> Any:
            return calls.differentiate(method, *args, **kwargs)

        return gradient

    functions.Function.__call__ = calling(functions.Function.__call__)
    tapes.GradientTape.gradient = differentiating(tapes.GradientTape.gradient)
