"""The order of the suite, and the initial state of its processes."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# The duration of an example depends on how busy the machine is.
settings.register_profile("leakline", deadline=None)
settings.load_profile("leakline")


def pytest_configure() -> None:
    """Restore the default handler of SIGINT: shells ignore interrupts in background jobs, which children inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without an `alone` test if only those should run: importing all files takes 15 seconds."""
    # The expression that the Makefile uses.
    if not config.getoption("markexpr").startswith("alone and") or not collection_path.match(
        "test_*.py"
    ):
        return None
    return None if "mark.alone" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run cheap tests first, trainings after them, and the browser last.

    The browser's driver leaves an event loop running in this thread until the session ends, and asyncio allows no
    second one.
    """
    items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in captured output, since xdist sends it to its controller as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """Give each test the logging of a new process and restore it, since `init` and `serve` configure logging."""
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


# Top-level packages of tests, and imports that a process which runs only one folder would not have.
_IMPORTED = frozenset({"tests", "benchmarks", "docs", "examples", "leakline_server"})


@pytest.fixture(scope="module")
def only_own_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide modules imported by tests of other folders.

    To a probe they would be part of the observed program, with their own globals and classes.
    """
    own = request.node.module.__name__.rpartition(".")[0]
    hidden = _take_modules(own)
    yield
    # A module that was imported again refers to other new modules.
    _take_modules(own)
    sys.modules.update(hidden)


def _take_modules(own: str) -> dict[str, ModuleType]:
    """Remove modules imported by tests from `sys.modules`, except those of the folder ``own``, and return them."""
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
