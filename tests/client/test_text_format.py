"""Numbers, sizes, durations, intervals and lists as text."""

from __future__ import annotations

from typing import Final

import pytest

from leakline.text_format import (
    count_of,
    entries_in,
    format_bytes,
    format_count_change,
    format_decimal,
    format_estimated_seconds,
    format_interval,
    format_number,
    format_percent_change,
    format_range,
    format_rate,
    format_share,
    format_silence,
    format_span,
    format_times,
    format_utc,
    in_brackets,
    join_processes,
    join_words,
    ordinal,
    plural,
    printable,
    worded,
)

MIB: Final = 2**20


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (16.0, "16 per generation"), (1.0, "1 per generation"), (3.4, "3.4 per generation"),
        (0.0, "0 per generation"), (0.333, "1 about every 3 generations"),
        (0.5, "1 about every 2 generations"), (0.66, "1 about every 1.5 generations"),
        (0.67, "0.7 per generation"), (0.94, "0.9 per generation"),
        (0.96, "1 per generation"), (0.001, "1 about every 1,000 generations"), (-0.3, "-0.3 per generation"),
    ],
)  # fmt: skip
def test_a_rate_below_one_is_written_as_one_per_several_generations(
    count: float, written: str
) -> None:
    assert format_rate(count, "generation") == written


def test_container_entries_are_singular_or_plural() -> None:
    assert entries_in(0.3, "seen", "epoch") == "1 more entry in seen about every 3.3 epochs"
    assert entries_in(0.8, "seen", "epoch") == "0.8 more entries in seen per epoch"
    assert entries_in(1.0, "seen", "epoch") == "1 more entry in seen per epoch"
    assert entries_in(20.0, "seen", "epoch") == "20 more entries in seen per epoch"


def test_an_interval_that_rounds_to_one_number_is_omitted() -> None:
    assert format_range(57.268 * MIB, 57.272 * MIB) == ""
    assert format_range(57.2 * MIB, 57.3 * MIB) == "57.20 MiB to 57.30 MiB"
    assert format_range(2.0, 2.0, str) == ""
    assert in_brackets("") == ""
    assert in_brackets("1 to 2") == " (1 to 2)"
    assert format_interval(MIB, MIB, MIB) == "1.00 MiB"
    assert format_interval(2, 1, 3, str) == "2 (1 to 3)"
    assert format_interval(2, 1, 3, lambda value: f"+{value}", str) == "+2 (1 to 3)"
    assert (format_span(7, 7), format_span(1000, 1200)) == ("7", "1,000 to 1,200")


def test_a_count_that_changes_has_a_sign() -> None:
    changes = (2.0, 0.0, -2.0, 0.25, 0.02, 0.0001, 3072.2)
    written = ["+2", "0", "-2", "+0.25", "+0.02", "0", "+3,072"]
    assert [format_count_change(change) for change in changes] == written


def test_numbers_of_several_processes_are_labelled_as_a_sum() -> None:
    assert join_processes("rank 1 main") == "rank 1 main"
    assert join_processes("rank 0 main, rank 1 main") == "rank 0 main and rank 1 main together"
    many = ", ".join(f"rank {n} main" for n in range(6))
    assert join_processes(many).endswith("rank 3 main and 2 more together")


def test_plain_numbers_have_three_significant_digits() -> None:
    values = (16, 0.25, 3072.4, 99.94, 99.96, 100.4, -100.4, -0.5, 12.0)
    written = ["16", "0.25", "3,072", "99.9", "100", "100", "-100", "-0.5", "12"]
    assert [format_number(value) for value in values] == written


def test_estimated_durations_have_two_units_and_silences_one() -> None:
    estimated = [format_estimated_seconds(seconds) for seconds in (0.4, 59.0, 60.0, 89.0, 3600.0)]
    assert estimated == ["0 s", "59 s", "1 min", "1 min", "1 h 0 min"]
    silent = [format_silence(seconds) for seconds in (1, 119, 120, 7100, 7200, 86_400)]
    assert silent == ["1 second", "119 seconds", "2 minutes", "118 minutes", "2 hours", "24 hours"]


def test_a_share_is_written_like_its_three_decimals_in_a_verdict() -> None:
    shares = (0.92452, 0.92548, 0.925, 0.93451)
    assert [format_share(each) for each in shares] == [
        format_share(round(each, 3)) for each in shares
    ]


def test_a_crash_is_not_introduced_as_learning() -> None:
    crashed = "Failed (exit status 3) before the first second ended"
    assert worded("learning", crashed) == crashed
    assert worded("learning", "Learning: 4 generations seen") == "learning: 4 generations seen"
    assert worded("ok", "Killed for memory") == "ok: Killed for memory"


def test_a_zero_has_no_sign() -> None:
    assert format_bytes(-0.2) == "0 B"
    assert (format_share(-0.0001), format_share(-0.05)) == ("0 %", "-5 %")
    assert [format_percent_change(value) for value in (0.0, -0.04, 0.04)] == ["0.0 %"] * 3
    assert [format_percent_change(value) for value in (-95, 1200)] == ["-95.0 %", "+1,200 %"]
    assert (format_decimal(-0.001), format_decimal(-4)) == ("0.00", "-4")


@pytest.mark.parametrize(
    ("word", "several"),
    [("run", "runs"), ("batch", "batches"), ("process", "processes"), ("try", "tries"), ("day", "days")],
)  # fmt: skip
def test_a_word_has_its_plural(word: str, several: str) -> None:
    assert (plural(word, 1), plural(word, 0), plural(word, 1.5)) == (word, several, several)
    assert (count_of(1, word), count_of(3072, word)) == (f"1 {word}", f"3,072 {several}")


def test_small_numbers_are_written_as_words() -> None:
    assert [format_times(n) for n in (0, 1, 2, 1000)] == ["0 times", "once", "twice", "1,000 times"]
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "21st", "112th",
    ]  # fmt: skip


def test_a_list_ends_with_and() -> None:
    assert [join_words("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("word", "sentence", "written"),
    [
        ("fixed", "Fixed: 16 MiB before, 0 B after", "fixed: 16 MiB before, 0 B after"),
        ("no_effect", "No effect: neither run leaks", "no_effect: neither run leaks"),
        ("filling", "Filling, not leaking: replay", "filling: not leaking: replay"),
        ("ok", "No leak", "ok: No leak"),
        ("watch", "Watchers grow", "watch: Watchers grow"),
    ],
)
def test_a_status_is_not_repeated_by_its_sentence(word: str, sentence: str, written: str) -> None:
    assert worded(word, sentence) == written


def test_control_characters_become_blanks() -> None:
    assert printable("a\x1b[2J\nb\u202ec") == "a [2J b c"
    assert printable("a\x1b\nb", "\n") == "a \nb"


def test_a_time_is_in_utc() -> None:
    assert format_utc(1_787_562_959.9) == "2026-08-24 09:15 UTC"
