"""The order of the suite, and what its processes begin with."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("leakline", deadline=None)
settings.load_profile("leakline")


def pytest_configure() -> None:
    """A shell hands down to what it puts into the background that interrupts are ignored; our children need theirs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no file without a test that is `alone` where only those are to run: importing all takes a quarter minute."""
    # As the Makefile writes it.
    if not config.getoption("markexpr").startswith("alone and") or not collection_path.match(
        "test_*.py"
    ):
        return None
    return None if "mark.alone" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cheap tests first, trainings after them, the browser last: its driver leaves an event loop running on this
    thread until the session ends, and asyncio runs no other beside it.
    """
    items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed goes from xdist's worker to its controller as UTF-8, which has no lone surrogates."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """Give each test the logging of a new process, and put back what the test sets up: `init` and `serve` configure it
    for the process that they are in.
    """
    root, own = logging.getLogger(), logging.getLogger("leakline")
    handlers, level = root.handlers[:], root.level
    _reset(own)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    _reset(own)


def _reset(logger: logging.Logger) -> None:
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


# What a test is in, or imports, and what a process that runs the tests of one folder alone would not have.
_IMPORTED = frozenset({"tests", "benchmarks", "docs", "examples", "leakline_server"})


@pytest.fixture(scope="module")
def only_own_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide the modules that tests of other folders have imported: to a probe they are parts of the program that it
    observes, with globals and classes of their own.
    """
    own = request.node.module.__name__.rpartition(".")[0]
    hidden = _take_modules(own)
    yield
    # A module that was imported again refers to others that were.
    _take_modules(own)
    sys.modules.update(hidden)


def _take_modules(own: str) -> dict[str, ModuleType]:
    """Remove what tests have imported from the modules, except the folder ``own``, and return it."""
    stay = ("tests.conftest.", f"{own}.")
    names = [
        name
        for name in sys.modules
        if name != "tests"
        and name.partition(".")[0] in _IMPORTED
        and not f"{name}.".startswith(stay)
    ]
    return {name: sys.modules.pop(name) for name in names}


def _turn(item: pytest.Item) -> int:
    if "browser" in item.path.parts:
        return 2
    return 1 if item.get_closest_marker("flow") or item.get_closest_marker("leaks") else 0
