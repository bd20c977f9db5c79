"""Scores and metrics of the suite of planted leaks, tested on hand-made verdicts, and its catalogue of public cases."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from tests.leaks import conftest, figures
from tests.leaks.catalogue import CASES, Case, Planted
from tests.leaks.public_cases import PublicCase, public_cases
from tests.leaks.scoring import (
    Look,
    Named,
    Pair,
    Seen,
    named,
    pair,
    score_leak,
    score_twin,
    start_tolerance,
)

from leakline.analysis.results import Kind, Status
from leakline.cli.commands.drill import leads_through

BY_NAME = {case.name: case for case in CASES}
POPULATIONS = BY_NAME["past_populations"]
TWO = BY_NAME["two_leaks"]
MIB = 2**20
AGENTS = (
    ("past_populations.Agent", "type"), ("past_populations.Evolution.hall_of_fame[*]", "holder"),
    ("numpy.ndarray", "type"),
)  # fmt: skip


def _finding(
    phase: str | None = "evolve_population", *, suspects: tuple[tuple[str, str], ...] = AGENTS,
    status: str = "confirmed", kind: str = "objects", rate: float | None = None, start: float | None = 1.0,
    path: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    size = POPULATIONS.bytes_per_generation if rate is None else rate
    return {
        "status": status, "kind": kind, "phase": phase, "phase_path": path,
        "suspects": [{"name": name, "role": role} for name, role in suspects],
        "growth_bytes_per_generation": {"estimate": size, "low": size, "high": size},
        "started_at_generation": None if start is None else {"estimate": start, "low": start, "high": start},
    }  # fmt: skip


def _seen(status: str, *findings: dict[str, Any], **more: Any) -> Seen:
    verdict = {"status": status, "summary": f"said: {status}", "findings": list(findings)}
    return Seen(verdict, **more)


def _named(finding: dict[str, Any] | None, case: Case = POPULATIONS) -> Named:
    return named(case, case.planted[0], finding)


def _pair(leak: Seen, twin: Seen, case: Case = POPULATIONS) -> Pair:
    return pair(case, leak, twin)


FOUND = _seen("confirmed", _finding())
CALM = _seen("ok")


@pytest.mark.parametrize(
    ("leak", "twin", "wrong"),
    [
        (FOUND, FOUND, "its twin is confirmed: said: confirmed"),
        (CALM, CALM, "the leak is ok: said: ok"),
        (_seen("watch", _finding(status="watch")), CALM, "the leak is watch: said: watch"),
        (_seen("recovered", _finding(status="recovered")), CALM, "the leak is recovered: said: recovered"),
        (
            FOUND, _seen("recovered", looks=(Look(9, "suspected"), Look(12, "confirmed"), Look(30, "recovered"))),
            "its twin is recovered, and was confirmed before: said: recovered",
        ),
    ],
    ids=["leak to everything", "never a leak", "only watched", "said to have stopped", "its twin was confirmed once"],
)  # fmt: skip
def test_a_pair_is_right_if_only_the_leak_is_found(leak: Seen, twin: Seen, wrong: str) -> None:
    found = _pair(leak, twin)
    assert not found.is_right
    assert found.what_is_wrong().startswith(wrong)


def test_analyses_and_incidents_show_every_suspicion() -> None:
    filled = _pair(FOUND, _seen("ok", looks=(Look(9, "suspected"), Look(14, "ok"))))
    assert (filled.is_right, filled.twin.ever_suspected) == (True, True)
    # Statuses that no analysis observed are taken from the incidents.
    incident = {"status": "resolved", "finding": _finding(status="confirmed")}
    twin = score_twin(_seen("ok", looks=(Look(30, "ok"),), incidents=(incident,)))
    assert twin.ever_confirmed
    assert not score_twin(_seen("ok", incidents=())).ever_suspected
    looks = (Look(3, "watch"), Look(5, "suspected"), Look(20, "confirmed"))
    assert score_leak(POPULATIONS, _seen("confirmed", _finding(), looks=looks)).suspected_after == 5
    assert score_leak(POPULATIONS, CALM).suspected_after is None


def test_the_first_active_finding_counts_rather_than_the_best() -> None:
    assert _named(_finding()) == Named(True, True, True, True, True, 1, 0.0, 1.0, True)
    assert _named(_finding()).is_right
    for wrong in (_finding("play"), _finding(kind="native"), _finding(suspects=())):
        assert not _named(wrong).is_right
    dicts = (("builtins.dict", "type"),)
    wrong = _finding("play", suspects=dicts, kind="native", rate=MIB, start=9)
    found = score_leak(POPULATIONS, _seen("confirmed", wrong, _finding())).named[0]
    assert found.rate_off == pytest.approx(1 - MIB / POPULATIONS.bytes_per_generation)
    assert replace(found, rate_off=None) == Named(start_off=9.0)
    for seen in (CALM, _seen("watch", _finding(status="watch"))):
        assert score_leak(POPULATIONS, seen).named == (Named(),)


@pytest.mark.parametrize(
    ("suspect", "role"),
    [
        ("past_populations.DoubleAgent", "type"), ("past_populations.Agent.best", "type"),
        # A holder does not count as a type, nor a type as a holder.
        ("past_populations.Evolution.hall_of_fame", "type"), ("past_populations.Agent", "holder"),
    ],
)  # fmt: skip
def test_a_type_is_compared_by_its_last_component_and_role(suspect: str, role: str) -> None:
    found = _named(_finding(suspects=((suspect, role),)))
    assert (found.type_first, found.holder) == (False, False)
    # In third place the right type counts only among the first three.
    others = [("builtins.dict", "type"), ("builtins.list", "type")]
    third = _named(_finding(suspects=(*others, ("numpy.ndarray", "type"))))
    assert (third.type_first, third.type_in_top) == (False, True)
    assert (third.place, third.is_right) == (3, False)


@pytest.mark.parametrize(
    ("path", "holder", "right"),
    [
        ("__main__.Evolution.hall_of_fame[*][*]", "Evolution.hall_of_fame", True),
        ("train.main.<locals>.evolution.hall_of_fame[*].weights", "evolution.hall_of_fame", True),
        ("train.make.<locals>.log.<closure>.kept['a.b']", "log.kept", True),
        ("train.Evolution", "Evolution.hall_of_fame", False),
        ("train.Other.hall_of_fame", "Evolution.hall_of_fame", False),
        ("train.Evolution.hall_of_fame_sizes", "Evolution.hall_of_fame", False),
        ("train.DoubleEvolution.hall_of_fame", "Evolution.hall_of_fame", False),
        ("train.log['Evolution.hall_of_fame']", "Evolution.hall_of_fame", False),
        ("<cyclic garbage>", "Evolution.hall_of_fame", False),
    ],
)
def test_a_path_is_right_if_it_contains_the_holder(path: str, holder: str, right: bool) -> None:
    assert leads_through(path, holder) == right


@pytest.mark.parametrize(
    ("planted", "finding", "right"),
    [
        ("train/augment", _finding("train", path="train/augment"), True), ("train/augment", _finding("train"), False),
        # Growth between phases is reported without a phase.
        (None, _finding(None), True), (None, _finding("train"), False), ("train", _finding(None), False),
    ],
)  # fmt: skip
def test_a_phase_may_be_given_by_its_path(
    planted: str | None, finding: dict[str, Any], right: bool
) -> None:
    leak = Planted(phases=(planted,), types=(), holders=None, size="1")
    assert named(POPULATIONS, leak, finding).phase == right


def test_a_start_may_be_ten_percent_outside_its_bounds() -> None:
    leak = Planted(phases=("train",), types=(), holders=None, size="1", first=(10, 12))
    starts = (8.0, 11.0, 14.5, None)
    found = [named(POPULATIONS, leak, _finding(start=start)) for start in starts]
    assert [n.start_off for n in found] == [2.0, 0.0, 2.5, None]
    assert [n.start_close for n in found] == [True, True, False, False]
    assert start_tolerance(leak) == 2.0
    assert start_tolerance(POPULATIONS.planted[0]) == 3.0


def test_two_leaks_are_found_in_either_order_with_their_rates() -> None:
    suspects = (("numpy.ndarray", "type"),)
    trajectories, gradients = map(TWO.bytes_of, TWO.planted)
    collect = _finding("collect", suspects=suspects, rate=2 * trajectories)
    train = _finding("train", suspects=suspects, rate=gradients)
    for order in ((collect, train), (train, collect)):
        found = score_leak(TWO, _seen("confirmed", *order)).named
        assert [(n.phase, n.rate_off) for n in found] == [(True, 1.0), (True, 0.0)]
    alone = score_leak(TWO, _seen("confirmed", train)).named
    assert [(n.phase, n.rate_off) for n in alone] == [(False, None), (True, 0.0)]


def _all_right(count: int, **twin: Any) -> list[Pair]:
    right = _pair(FOUND, CALM)
    return [replace(right, twin=replace(right.twin, **twin)) for _ in range(count)]


def _failures(pairs: list[Pair], expected: int) -> dict[str, str]:
    return {f.name: f.failure() for f in figures.figures(pairs, expected) if f.failure()}


def test_thirty_right_pairs_meet_all_goals() -> None:
    looks = (Look(4, "suspected"),)
    right = _pair(replace(FOUND, looks=looks), CALM)
    found = {f.name: f for f in figures.figures([right] * 30, 30)}
    assert not _failures([right] * 30, 30)
    assert found["pairs distinguished"].text() == "100.0 %"
    assert found["pairs distinguished"].bound == pytest.approx(0.05 ** (1 / 30))
    assert found["healthy twins ever confirmed"].bound == pytest.approx(1 - 0.05 ** (1 / 30))
    assert found["generations until a leak is first suspected, median"].text() == "4 generations"


@pytest.mark.parametrize(
    ("pairs", "expected", "failures"),
    [
        (
            [*_all_right(28), *[_pair(CALM, CALM)] * 2], 30,
            {
                "pairs distinguished": "93.3 % is not >= 95.0 %", "right phase": "93.3 % is not >= 95.0 %",
                "right type in the first three": "93.3 % is not >= 98.0 %",
            },
        ),
        (
            [*_all_right(29), *_all_right(1, ever_confirmed=True)], 30,
            {"healthy twins ever confirmed": "3.3 % is not <= 0.0 %"},
        ),
        (_all_right(3), 30, {"pairs scored": "3 pairs is not >= 30 pairs"}),
    ],
    ids=["two wrong pairs", "one confirmed twin", "a part of the suite"],
)  # fmt: skip
def test_a_failing_suite_names_the_missed_goals(
    pairs: list[Pair], expected: int, failures: dict[str, str]
) -> None:
    assert _failures(pairs, expected) == failures


def test_tests_that_did_not_run_are_not_measured() -> None:
    short = _failures([], 14)
    assert short["pairs distinguished"] == "was not measured"
    assert short["right holder, where Python holds it"] == "was not measured"
    whole = [f.failure() for f in figures.of_the_suite(figures.Spent())]
    assert whole == ["was not measured", "was not measured"]
    assert not figures.failures({}, figures.of_the_suite(figures.Spent(19.9, 1_999_000_000)))
    assert len(figures.failures({}, figures.of_the_suite(figures.Spent(20.1, 2_001_000_000)))) == 2


@pytest.mark.parametrize(("check", "status"), [("", 0), ("1", 1)])
def test_a_missed_goal_fails_the_session_only_if_requested(
    check: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECK", check)
    monkeypatch.setattr(conftest, "RESULTS", tmp_path)
    session: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()), exitstatus=0)
    conftest.pytest_sessionfinish(session)
    assert not list(tmp_path.iterdir())
    session.config.stash[conftest.SUITE] = conftest.Suite(pairs=_all_right(29))
    conftest.pytest_sessionfinish(session)
    assert session.exitstatus == status
    stored = json.loads((tmp_path / "figures.json").read_text())
    wanted = sum(not case.held_back for case in conftest.CASES)
    assert stored["groups"]["open"][0]["failure"] == f"29 pairs is not >= {wanted} pairs"


ROOT = Path(__file__).resolve().parents[2]
PUBLIC = public_cases()
REFERENCE = re.compile(r"[A-Za-z][\w.-]*( PR )?#\d+")
# Series names are written out, or built in braces, where they are read or drawn.
SOURCES = "\n".join(
    path.read_text()
    for folder in ("agent_client/leakline", "server/leakline_server")
    for path in sorted((ROOT / folder).rglob("*.py"))
)


def test_forty_families_have_references_and_programs() -> None:
    assert len({case.id for case in PUBLIC}) == len(PUBLIC) >= 40
    known = {reference for case in PUBLIC for reference in case.references}
    assert len(known) >= 120
    assert not {r for case in CASES for r in case.references if r not in known}
    assert sum(bool(case.programs) for case in PUBLIC) >= len(PUBLIC) / 2
    harmless = [case for case in PUBLIC if not {"suspected", "confirmed"} & set(case.status)]
    assert len(harmless) >= 8
    assert any(case.oom_risk for case in harmless)


@pytest.mark.parametrize("case", PUBLIC, ids=lambda case: case.id)
def test_each_case_has_texts_references_a_verdict_and_measured_series(
    case: PublicCase,
) -> None:
    assert all(len(text) > 10 for text in (case.cause, case.sees, case.signal))
    assert case.references
    assert all(REFERENCE.fullmatch(reference) for reference in case.references)
    assert case.status
    assert set(case.status) <= set(get_args(Status))
    assert set(case.kinds) <= set(get_args(Kind))
    assert case.kinds or not {"suspected", "confirmed"} & set(case.status)
    assert case.series
    for name in case.series:
        composed = re.escape(name).replace(r"\*", r"\{[^}]*\}")
        assert re.search(rf"[\"']{composed}[\"']", SOURCES), name
