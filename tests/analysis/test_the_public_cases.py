"""The catalogue of public cases can be read by a program, is large enough, and speaks of series and kinds there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from tests.leaks.catalogue import CASES
from tests.leaks.public_cases import PublicCase, public_cases

from leakline.analysis.results import Kind, Status

ROOT = Path(__file__).resolve().parents[2]
FOUND = public_cases()
REFERENCE = re.compile(r"[A-Za-z][\w.-]*( PR )?#\d+")
# Names of series are written out, or composed in braces, where they are read or drawn.
SOURCES = "\n".join(
    path.read_text()
    for folder in ("agent_client/leakline", "server/leakline_server")
    for path in sorted((ROOT / folder).rglob("*.py"))
)

each = pytest.mark.parametrize("case", FOUND, ids=lambda case: case.id)


def test_there_are_forty_families_and_a_hundred_and_twenty_references() -> None:
    assert len({case.id for case in FOUND}) == len(FOUND) >= 40
    assert len({reference for case in FOUND for reference in case.references}) >= 120


@each
def test_a_case_is_told_by_a_cause_a_sight_and_a_signal(case: PublicCase) -> None:
    assert all(len(text) > 10 for text in (case.cause, case.sees, case.signal))
    assert case.references
    assert all(REFERENCE.fullmatch(reference) for reference in case.references)


@each
def test_a_case_has_an_expected_verdict(case: PublicCase) -> None:
    assert case.status
    assert set(case.status) <= set(get_args(Status))
    assert set(case.kinds) <= set(get_args(Kind))
    if {"suspected", "confirmed"} & set(case.status):
        assert case.kinds


@each
def test_a_case_names_series_that_are_measured(case: PublicCase) -> None:
    assert case.series
    for name in case.series:
        composed = re.escape(name).replace(r"\*", r"\{[^}]*\}")
        assert re.search(rf"[\"']{composed}[\"']", SOURCES), name


def test_harmless_growth_is_among_them() -> None:
    harmless = [case for case in FOUND if not {"suspected", "confirmed"} & set(case.status)]
    assert len(harmless) >= 8
    assert any(case.oom_risk for case in harmless)


def test_every_reference_of_a_program_is_one_of_a_public_case() -> None:
    known = {reference for case in FOUND for reference in case.references}
    missing = {r for case in CASES for r in case.references if r not in known}
    assert not missing


def test_half_of_the_families_are_done_again_by_a_program() -> None:
    assert sum(bool(case.programs) for case in FOUND) >= len(FOUND) / 2
