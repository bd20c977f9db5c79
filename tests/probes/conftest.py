"""The program that the probes observe."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def observed_program(only_own_folder: None) -> None:
    """Of the modules that pytest has collected, the program has those of this folder alone."""
