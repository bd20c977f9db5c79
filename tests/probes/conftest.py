"""The program that the probes observe."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def observed_program(only_own_folder: None) -> Iterator[None]:
    """Of the modules that pytest has collected, the program has those of this folder alone. What is older
    is frozen, so the collector does not list it: no look counts what other tests left, nor takes time for it.
    """
    gc.freeze()
    yield
    gc.unfreeze()
