"""Trainings killed at random moments, `LEAKLINE_SOAK_KILLS` of them (200)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.client.killing import kill_and_sync


def test_kills_at_random_moments_lose_at_most_a_second_and_corrupt_nothing(
    tmp_path: Path, size: Callable[[str, int], int], tell: Callable[[object], None]
) -> None:
    figures = kill_and_sync(tmp_path, size("LEAKLINE_SOAK_KILLS", 200), seed=2)
    tell(figures)
    assert figures.wrong == []
    assert figures.rewriting > 0, "none was killed in a rewrite"
    assert max(figures.lost_seconds) <= 1.0, figures
