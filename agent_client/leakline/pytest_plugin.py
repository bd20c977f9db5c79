"""The pytest plugin: a test that keeps memory from call to call fails, with the verdict and who holds it.

    @pytest.mark.leakline(max_growth="1 MiB", generations=6)
    def test_an_episode_leaves_nothing():
        play_episode()

The function is called ``warm_up`` times (1), then ``generations`` times (6, at least 5), each call one generation. It
fails when a generation keeps more than ``max_growth``. A test that takes the fixture ``leakline_run`` is called once,
and says itself where a generation is: ``with leakline_run.generation(number): ...``; phases inside it are named.

Garbage is collected between generations (``collect=False``: it is not). Tests without the marker are not touched, and
what measures and judges is not loaded for them. ``-p no:leakline`` leaves the plugin out.
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
    "leakline(max_growth='1 MiB', generations=6, warm_up=1, collect=True): call the test again and again; fail when "
    "each call keeps more memory than that"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", LINE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marked = item.get_closest_marker(MARKER) is not None
    if marked and not _can_be_called_again(item):
        why = f"leakline: {item.name} is no test function, which could be called again and again; "
        pytest.fail(f"{why}write it as a function, or as a method of a plain class", pytrace=False)


def _can_be_called_again(item: pytest.Item) -> bool:
    """A method of a unittest.TestCase is called by that class, once, and not through the hook below."""
    unittest = sys.modules.get("unittest")
    if not isinstance(item, pytest.Function):
        return False
    return unittest is None or item.cls is None or not issubclass(item.cls, unittest.TestCase)


@pytest.fixture
def leakline_run(request: pytest.FixtureRequest) -> Iterator[MeasuredRun]:
    """A run for one test, which is nowhere else: generations and phases as in a training."""
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
        # Else a plugin that calls a failed test again would have it judged by this run.
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
        # Python names our function in it, which nobody has called.
        wrong = f"{str(error).partition(' ')[2]}; it takes {', '.join(inspect.signature(allowed).parameters)}"
    # Outside of both: pytest would show what it was made of as well.
    pytest.fail(f"the marker leakline of {item.nodeid}: {wrong}", pytrace=False)


def _again_and_again(
    item: pytest.Function, function: Callable[..., Any], limit: Allowed
) -> Callable[..., Any]:
    """The function with its generations; what it gives and raises is passed through."""
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
        few = f"leakline: {item.name} had {count_of(seen, 'generation')}; {LEAST_GENERATIONS} are needed to tell"
        pytest.fail(few, pytrace=False)
    item.user_properties.append(("leakline_growth_bytes_per_generation", judged.growth_bytes))
    item.user_properties.append(("leakline_verdict", judged.verdict.summary))
    if judged.is_leak:
        pytest.fail(failure_text(judged, limit), pytrace=False)
