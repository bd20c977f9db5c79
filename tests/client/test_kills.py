"""A training killed at any moment: after a sync all but its last second is on the server, once and whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.killing import kill_and_sync

pytestmark = [pytest.mark.flow, pytest.mark.alone]


def test_ten_kills_lose_less_than_a_second_and_corrupt_nothing(tmp_path: Path) -> None:
    figures = kill_and_sync(tmp_path, 10)
    assert figures.wrong == [], figures
    assert figures.stored > 100
    assert max(figures.lost_seconds) <= 1.0, figures
