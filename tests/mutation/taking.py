"""A plugin of pytest under coverage: which test takes a line, by its name for pytest, and how long it is at it.

Not coverage's own `dynamic_context = test_function`, which goes by the name of the outermost function that begins with
`test`: code that Hypothesis calls is then of `ConjectureRunner.test_function`, which is no test that pytest could run.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_seconds: dict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """All parameters of a test are one, and so is what they are given."""
    name = item.nodeid.partition("[")[0]
    current = coverage.Coverage.current()
    assert current is not None
    current.switch_context(name)
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        _seconds[name] += time.perf_counter() - began


def pytest_sessionfinish() -> None:
    Path(os.environ["LEAKLINE_TEST_SECONDS"]).write_text(json.dumps(_seconds))
