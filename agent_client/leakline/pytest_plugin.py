"""Pytest plugin that fails tests whose memory grows from call to call, and shows the verdict and the holders.

    @pytest.mark.leakline(max_growth="1 MiB", generations=6)
    def test_an_episode_leaves_nothing():
        play_episode()

The test function is called ``warm_up`` times (default 1) and then ``generations`` times (default 6, at least 5). Each
call after the warm-up is one generation. The test fails if a generation retains more than ``max_growth``. A test that
requests the fixture ``leakline_run`` is called once and marks its generations itself: ``with
leakline_run.generation(number): ...``. If the generations contain phases, the verdict names them.

Garbage is collected between generations unless ``collect=False``. Tests without the marker or the fixture run
unchanged, without importing the measuring and analysis modules. ``-p no:leakline`` disables the plugin.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from .testing import Allowed, MeasuredRun

MARKER: Final = "leakline"
LINE: Final = (
    "leakline(max_growth='1 MiB', generations=6, warm_up=1, collect=True): call the test repeatedly and "
    "fail if each call retains more memory than max_growth"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", LINE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marked = item.get_closest_marker(MARKER) is not None
    if marked and not _can_be_called_again(item):
        why = f"leakline: {item.name} is not a test function, so it cannot be called repeatedly; "
        pytest.fail(f"{why}write it as a function or as a method of a plain class", pytrace=False)


def _can_be_called_again(item: pytest.Item) -> bool:
    """Return True if the test can be called repeatedly, unlike methods of unittest.TestCase."""
    unittest = sys.modules.get("unittest")
    if not isinstance(item, pytest.Function):
        return False
    return unittest is None or item.cls is None or not issubclass(item.cls, unittest.TestCase)


@pytest.fixture
def leakline_run(request: pytest.FixtureRequest) -> Iterator[MeasuredRun]:
    """Yield a run for one test, in which the test marks generations and phases as in a training run."""
    from .testing import MeasuredRun

    limit = _allowed(request.node)
    run = MeasuredRun(limit.collect)
    request.node.stash[_RUN] = run
    with run:
        yield run


_RUN: Final = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    drives_itself = _RUN in pyfuncitem.stash
    if pyfuncitem.get_closest_marker(MARKER) is None and not drives_itself:
        return (yield)
    limit = _allowed(pyfuncitem)
    function = pyfuncitem.obj
    if not drives_itself:
        pyfuncitem.obj = _again_and_again(pyfuncitem, function, limit)
    try:
        outcome = yield
    finally:
        pyfuncitem.obj = function
        run = pyfuncitem.stash[_RUN]
        # If a plugin reruns a failed test, the rerun must not be judged by the old run.
        del pyfuncitem.stash[_RUN]
    run.__exit__()
    _judge(pyfuncitem, run, limit)
    return outcome


def _allowed(item: pytest.Item) -> Allowed:
    from .errors import BadArgument
    from .testing import allowed

    marker = item.get_closest_marker(MARKER)
    try:
        return allowed() if marker is None else allowed(*marker.args, **marker.kwargs)
    except BadArgument as error:
        wrong = str(error)
    except TypeError as error:
        # Python's message names our internal function, which the user did not call.
        wrong = f"{str(error).partition(' ')[2]}; the marker takes {', '.join(inspect.signature(allowed).parameters)}"
    # This call is outside the except clauses, because otherwise pytest would also show the chained exception.
    pytest.fail(f"leakline marker of {item.nodeid}: {wrong}", pytrace=False)


def _again_and_again(
    item: pytest.Function, function: Callable[..., Any], limit: Allowed
) -> Callable[..., Any]:
    """Return a function that calls ``function`` for the warm-up and then once per generation. Exceptions propagate."""
    from .testing import MeasuredRun

    run = item.stash[_RUN] = MeasuredRun(limit.collect)

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> None:
        for _ in range(limit.warm_up):
            function(*arguments, **named)
        with run:
            for number in range(limit.generations):
                run.generation(number)
                function(*arguments, **named)
                run.end_generation()

    @functools.wraps(function)
    async def awaited(*arguments: Any, **named: Any) -> None:
        for _ in range(limit.warm_up):
            await function(*arguments, **named)
        with run:
            for number in range(limit.generations):
                run.generation(number)
                await function(*arguments, **named)
                run.end_generation()

    return awaited if inspect.iscoroutinefunction(function) else called


def _judge(item: pytest.Function, run: MeasuredRun, limit: Allowed) -> None:
    from .testing import LEAST_GENERATIONS, failure_text
    from .text_format import count_of

    judged = run.judged(limit)
    seen = judged.verdict.generations
    if seen < LEAST_GENERATIONS:
        few = f"leakline: {item.name} had {count_of(seen, 'generation')}; a verdict needs at least {LEAST_GENERATIONS}"
        pytest.fail(few, pytrace=False)
    item.user_properties.append(("leakline_growth_bytes_per_generation", judged.growth_bytes))
    item.user_properties.append(("leakline_verdict", judged.verdict.summary))
    if judged.is_leak:
        pytest.fail(failure_text(judged, limit), pytrace=False)
