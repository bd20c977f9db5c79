"""What a training script opens with ``with``: a phase, a generation, a cleanup. Phases and cleanups also decorate."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from ..actions.cleanups import Before
from .phase_accounting import Frame

P = ParamSpec("P")
R = TypeVar("R")


class Measuring(Protocol):
    """What a block asks of the run it belongs to."""

    def or_current(self) -> Measuring: ...
    def _enter_phase(self, name: str) -> Frame | None: ...
    def _exit_phase(self, frame: Frame, error: BaseException | None) -> None: ...
    def _end_generation(self, error: BaseException | None) -> None: ...
    def _before_cleanup(self) -> Before | None: ...
    def _after_cleanup(self, name: str, before: Before | None) -> None: ...


class _Block:
    """Enters and leaves once per ``with``, and once per call of what it decorates."""

    def __init__(self, run: Measuring, name: str) -> None:
        self._run, self._name = run, name

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, a coroutine function, or a generator function of either kind."""
        block: Callable[[], _Block] = functools.partial(self._again, self._run, self._name)
        return _wrapped(function, block)

    @classmethod
    def _again(cls, run: Measuring, name: str) -> _Block:
        # Library code may decorate at import, before the program has called init.
        return cls(run.or_current(), name)


def _wrapped(function: Callable[P, R], block: Callable[[], _Block]) -> Callable[P, R]:
    wrapper: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            inner: Any = function(*args, **kwargs)
            with block():
                # What `yield from` does below; the language has no such expression for this kind.
                step = inner.asend(None)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001
                        # Whatever the program throws in belongs to the function's own body, as with `yield from`.
                        step = inner.athrow(error)
                    else:
                        step = inner.asend(sent)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return function(*args, **kwargs)

    return wrapper  # type: ignore[no-any-return]


class Phase(_Block):
    """``with run.phase("train"): ...`` or ``@run.phase("train")``. Closes on every way out."""

    def __init__(self, run: Measuring, name: str) -> None:
        super().__init__(run, name)
        self._frames: list[Frame | None] = []

    def __enter__(self) -> Phase:
        self._frames.append(self._run._enter_phase(self._name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        frame = self._frames.pop()
        if frame is not None:
            self._run._exit_phase(frame, error)


class Cleanup(_Block):
    """Records private memory before and after what runs inside, and what that freed."""

    def __init__(self, run: Measuring, name: str) -> None:
        super().__init__(run, name)
        self._before: list[Before | None] = []

    def __enter__(self) -> Cleanup:
        self._before.append(self._run._before_cleanup())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run._after_cleanup(self._name, self._before.pop())


class Generation:
    """Started when made; as a context manager it also ends, otherwise the next one ends it."""

    def __init__(self, run: Measuring) -> None:
        self._run = run

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run._end_generation(error)
