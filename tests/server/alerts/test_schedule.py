"""Urgent alerts are tried until nobody needs them, others on a schedule that outlasts a night."""

from __future__ import annotations

from itertools import pairwise

import pytest

from leakline_server.alerts.post import TryAgain
from leakline_server.alerts.schedule import next_wait

REFUSED = TryAgain("answered 500", 0.1, 500)
HOUR = 3_600.0


def moments(urgent: bool, dice: float = 0.0, at_most: int = 1_000) -> list[float]:
    """Seconds after the alert of every try of a message that nobody takes."""
    at, made = 0.0, [0.0]
    while len(made) < at_most:
        wait = next_wait(len(made), REFUSED, lambda: dice, urgent=urgent, age_seconds=at)
        if wait is None:
            return made
        at += wait
        made.append(at)
    return made


def test_an_urgent_alert_is_tried_six_times_in_a_quarter_of_an_hour() -> None:
    assert moments(urgent=True, at_most=6) == [0, 5, 20, 80, 260, 860]


def test_an_urgent_alert_is_tried_every_ten_minutes_for_a_day() -> None:
    tried = moments(urgent=True)
    assert {round(b - a) for a, b in pairwise(tried[5:])} == {600}
    assert 24 * HOUR - 600 < tried[-1] <= 24 * HOUR


def test_an_ordinary_alert_is_tried_on_the_long_schedule_of_standard_webhooks() -> None:
    tried = moments(urgent=False)
    waits = [b - a for a, b in pairwise(tried)]
    assert waits == [5, 300, 1_800, 2 * HOUR, 5 * HOUR, 10 * HOUR, 10 * HOUR]


@pytest.mark.parametrize("urgent", [True, False])
def test_waits_are_spread_by_at_most_a_fifth(urgent: bool) -> None:
    plain, spread = moments(urgent, 0.0, 6), moments(urgent, 0.999, 6)
    for a, b in zip(plain[1:], spread[1:], strict=True):
        assert 1.15 * a < b < 1.2 * a


def test_a_receiver_that_asks_for_patience_gets_it_but_never_less_than_the_schedule() -> None:
    patient = TryAgain("answered 429", 0.1, 429, 40.0)
    assert next_wait(1, patient, lambda: 0.0) == 40
    assert next_wait(4, patient, lambda: 0.0) == 180


def test_what_is_sent_again_by_hand_after_a_day_has_the_first_tries_of_its_schedule() -> None:
    tries = [next_wait(n, REFUSED, lambda: 0.0, age_seconds=30 * HOUR) for n in range(1, 7)]
    assert tries == [5, 15, 60, 180, 600, None]
