"""Reports to the `Loop` what training loops of JAX and TensorFlow do, for programs without callbacks.

Such a loop calls compiled functions. One that computes gradients while it is traced is a training step each time that
the program calls it. Gradients outside of compiled functions are training steps as well. Calls of other compiled
functions are a phase with the name of the function, as ``eval_step``, if the previous time at least
SHORTEST_STEP_SECONDS passed between the first of them and the next training step. Functions that are compiled ahead of
time are not found.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

from .plain_loop import OF_A_STEP, SHORTEST_STEP_SECONDS, Loop, replace

# The calls of a JAX function that has been called so often without being a training step or a phase are too short for
# one. They are no longer reported.
IGNORED_AFTER: Final = 10_000

# A function with one of these names would be taken for a phase that the loop itself names.
OTHER_PHASES: Final = OF_A_STEP | {"train", "checkpoint", "logging"}


class _Known:
    """Knowledge about a compiled function: whether it computes gradients, and whether its calls are a phase."""

    __slots__ = ("calls", "is_phase", "phase", "trains")

    def __init__(self, name: object) -> None:
        self.calls = 0
        # Libraries call their wrappers ``_call`` or ``<lambda>``.
        is_name = isinstance(name, str) and name[:1].isalpha() and name not in OTHER_PHASES
        self.phase = str(name) if is_name else "evaluation"
        self.trains = self.is_phase = False


class _Thread:
    """A thread that calls compiled functions."""

    __slots__ = ("newest", "outermost", "since")

    def __init__(self) -> None:
        # The function that the program has called and that has not returned yet.
        self.outermost: _Known | None = None
        # When the first function that does not train was called after the newest training step (never before the first
        # step), and the newest of these functions.
        self.since: float | None = math.inf
        self.newest: _Known | None = None


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
        self._known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
        # The function that a thread of the program calls at the moment.
        self._busy: _Known | None = None

    def known(self, function: Any) -> _Known:
        """Return what is known of a function. A program may compile the same function at each step."""
        if (found := self._known.get(function)) is None:
            found = self._known[function] = _Known(getattr(function, "__name__", None))
        return found

    def call(self, known: _Known, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a compiled function."""
        thread = self._threads.this
        if thread.outermost is not None:
            # A function that has been traced before is not traced again within another one.
            thread.outermost.trains |= known.trains
            return function(*args, **kwargs)
        if known.trains:
            return self._train(thread, known, function, *args, **kwargs)
        try:
            self._busy = known
            thread.outermost, thread.newest = known, known
            now = self._clock()
            if thread.since is None:
                thread.since = now
            elif now - thread.since >= SHORTEST_STEP_SECONDS:
                known.is_phase = True
            if not known.is_phase:
                known.calls += 1
            elif not self._loop.is_in(known.phase):
                self._loop.report(self._loop.computes, known.phase)
            return function(*args, **kwargs)
        finally:
            self._busy, thread.outermost = None, None
            if known.trains:
                # It has just been traced.
                self._loop.report(self._loop.begins_step)
                self._loop.report(self._loop.stepped)

    def trace(self, known: _Known, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that traces another one, without calling it."""
        thread = self._threads.this
        before, thread.outermost = thread.outermost, known
        try:
            return function(*args, **kwargs)
        finally:
            thread.outermost = before

    def differentiating(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that computes gradients, or that begins to."""

        @functools.wraps(function)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            thread = self._threads.this
            # Replicas are traced on other threads, while the function that they belong to waits.
            traced = thread.outermost or self._busy
            if not self._is_tracing() and thread.outermost is None:
                return self._train(thread, _GRADIENTS, function, *args, **kwargs)
            if traced is not None:
                traced.trains = True
            return function(*args, **kwargs)

        return differentiated

    def _train(
        self, thread: _Thread, known: _Known, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        if thread.newest is not None and thread.since is not None:
            thread.newest.is_phase = self._clock() - thread.since >= SHORTEST_STEP_SECONDS
        try:
            thread.outermost, thread.since, thread.newest = known, None, None
            self._loop.report(self._loop.begins_step)
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
        program = getattr(self.__wrapped__, "__func__", self.__wrapped__)
        self._known = calls.known(program if inspect.isfunction(program) else self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._known.calls > IGNORED_AFTER:
            return self._function(*args, **kwargs)
        return self._calls.call(self._known, self._function, *args, **kwargs)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._calls.trace(self._known, self._function.lower, *args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._calls.trace(self._known, self._function.trace, *args, **kwargs)

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
            if hasattr(made, "lower"):
                return _Compiled(made, calls)
            # Without a function, JAX returns a decorator.
            return lambda *args, **kwargs: _Compiled(made(*args, **kwargs), calls)

        # Where pickle finds it.
        compiled.__module__ = "jax"
        return compiled

    def of_shape(eval_shape: Any) -> Any:
        # JAX tests the type of the function.
        @functools.wraps(eval_shape)
        def evaluated(fun: Any, *args: Any, **kwargs: Any) -> Any:
            plain = fun._function if type(fun) is _Compiled else fun
            return eval_shape(plain, *args, **kwargs)

        return evaluated

    replace(api, "eval_shape", of_shape)
    # ``grad`` and ``value_and_grad`` call one of these.
    for name in ("vjp", "_vjp"):
        if hasattr(api, name):
            replace(api, name, calls.differentiating)
    # Our calls are in no traceback and no compiled text of the program.
    for module in ("jax._src.traceback_util", "jax._src.source_info_util"):
        sys.modules[module].register_exclusion(__file__)
    jax.jit, jax.pmap = compiling(jax.jit), compiling(jax.pmap)


def watch_tensorflow(loop: Loop, clock: Callable[[], float] = time.monotonic) -> None:
    """Replace the methods of TensorFlow that call compiled functions and differentiate. It has been imported."""
    functions: Any = sys.modules[
        "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    ]
    tapes: Any = sys.modules["tensorflow.python.eager.backprop"]
    is_at_rest: Callable[[], bool] = sys.modules["tensorflow"].executing_eagerly
    calls = _Calls(loop, lambda: not is_at_rest(), clock)

    def calling(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return calls.call(calls.known(self), method, self, *args, **kwargs)

        return call

    def tracing(method: Any) -> Any:
        @functools.wraps(method)
        def trace(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return calls.trace(calls.known(self), method, self, *args, **kwargs)

        return trace

    replace(functions.Function, "__call__", calling)
    replace(functions.Function, "get_concrete_function", tracing)
    replace(tapes.GradientTape, "gradient", calls.differentiating)
