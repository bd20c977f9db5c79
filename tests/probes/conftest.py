"""The program that the probes observe in these tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def observed_program(only_own_folder: None) -> Iterator[None]:
    """Count only modules of this folder as the program, and freeze older objects.

    The collector does not list frozen objects, so scans neither count nor spend time on what other tests left.
    """
    gc.freeze()
    yield
    gc.unfreeze()
