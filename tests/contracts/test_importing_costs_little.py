"""`import leakline` is in the first lines of a training script: few modules, little time, nothing others must have."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping

import pytest

REPEATS = 7
# Of the CPU of an interpreter that starts and ends. Measured 9; `import asyncio` is 5 to 6.
MOST_OF_AN_EMPTY_START = 14.0
MOST_MODULES_OF_OURS = 95
MOST_MODULES = 200
# The server's, the program's, and what is loaded when it is first needed.
FORBIDDEN = {
    *("torch", "numpy", "pandas", "psutil", "pynvml", "requests", "matplotlib"),
    *("leakline_server", "fastapi", "starlette", "pydantic", "sqlalchemy", "jinja2", "uvicorn", "msgspec"),
    *("leakline._native", "leakline.analysis", "leakline.report", "leakline.cli", "leakline.uploading"),
    *("http.client", "ssl", "asyncio", "unittest", "multiprocessing", "sqlite3", "tracemalloc"),
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """As in an installed package: compiled once, wherever the tests may write."""
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPROFILEIMPORTTIME"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


@pytest.fixture(scope="module")
def loaded(environment: Mapping[str, str]) -> set[str]:
    code = (
        "import sys, json; before = set(sys.modules); import leakline; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code], env=environment)))


def test_importing_leakline_loads_nothing_that_is_heavy_or_may_be_missing(loaded: set[str]) -> None:
    assert "leakline" in loaded
    assert loaded & FORBIDDEN == set()


def test_importing_leakline_loads_few_modules(loaded: set[str]) -> None:
    ours = {name for name in loaded if name.partition(".")[0] == "leakline"}
    assert len(ours) <= MOST_MODULES_OF_OURS, sorted(ours)
    assert len(loaded) <= MOST_MODULES, sorted(loaded - ours)


def test_importing_leakline_takes_little_more_than_starting_python(
    environment: Mapping[str, str],
) -> None:
    _start("import leakline", environment)
    # In turns, so that a busy machine slows both.
    starts = [
        (_start("pass", environment), _start("import leakline", environment))
        for _ in range(REPEATS)
    ]
    empty, ours = (min(column) for column in zip(*starts, strict=True))
    assert ours < MOST_OF_AN_EMPTY_START * empty, f"{ours / empty:.1f} times an empty start"


def test_importing_leakline_leaves_the_cost_of_the_native_module_for_later(
    environment: Mapping[str, str],
) -> None:
    """What is compiled may be missing, broken or of another interpreter: the import must not meet it."""
    opened = "import sys; sys.addaudithook(lambda event, args: event == 'import' and '_native' in args[0] and 1 / 0); "
    subprocess.run([sys.executable, "-c", opened + "import leakline"], env=environment, check=True)


def _start(code: str, environment: Mapping[str, str]) -> float:
    """CPU seconds of one interpreter from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
