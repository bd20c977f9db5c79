"""How right an answer was: verdicts as the server gives them, against what was planted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from leakline.analysis.results import Kind as FindingKind
from leakline.drill.kinds import ALIKE, KINDS, LEAKING, Kind
from leakline.drill.scoring import Answer, Look, Message, Seen, Truth, finding_of, passed, score
from leakline.drill.telling import Drilled, as_json, lines, summary

MIB = 2**20
INSTANCES = Truth(KINDS["instances"], 4 * MIB)
NATIVE = Truth(KINDS["native"], 4 * MIB)
LATE = Truth(KINDS["late_start"], 4 * MIB)
HEALTHY = Truth(KINDS["replay_buffer"], 0)
CONFIRMED = Message("incident.confirmed", "i1", "confirmed", 16, 0.4, True)


def suspect(name: str, role: str = "type") -> dict[str, Any]:
    return {"name": name, "role": role, "count_per_generation": 64, "bytes_per_generation": 4 * MIB}


ENVIRONMENT = suspect("small_training.held.Environment")


def finding(**changed: Any) -> dict[str, Any]:
    """A right one about `instances`; ``estimate`` and ``start`` are put where they belong."""
    estimate, start = changed.pop("estimate", 4 * MIB), changed.pop("start", 0)
    return {
        "fingerprint": "f1", "status": "confirmed", "kind": "objects", "phase": "collect",
        "suspects": [ENVIRONMENT],
        "growth_bytes_per_generation": {"estimate": estimate, "low": 0.9 * estimate, "high": 1.1 * estimate},
        "started_at_generation": None if start is None else {"estimate": start, "low": start, "high": start},
        **changed,
    }  # fmt: skip


def verdict(*findings: dict[str, Any], status: str = "confirmed") -> dict[str, Any]:
    return {"status": status, "summary": "what it says", "generations": 30, "findings": findings}


def scored(truth: Truth, *findings: dict[str, Any], **seen: Any) -> dict[str, Answer]:
    given = {"messages": (CONFIRMED,), **seen}
    answers = score(truth, Seen(verdict(*findings), **given))
    return {answer.question: answer for answer in answers}


def wrong(answers: dict[str, Answer]) -> set[str]:
    return {question for question, answer in answers.items() if answer.right is False}


def test_without_a_finding_the_leak_is_not_found_whatever_the_status() -> None:
    answers = scored(INSTANCES, messages=())
    assert wrong(answers) == {"found", "webhook"}
    assert not passed(tuple(answers.values()))


def test_a_finding_that_is_only_watched_is_not_found() -> None:
    assert "found" in wrong(scored(INSTANCES, finding(status="watch")))


def test_a_leak_found_on_the_way_and_taken_back_in_the_end_is_not_found() -> None:
    looks = (Look(6, "suspected"), Look(30, "recovered"))
    answers = scored(INSTANCES, finding(status="recovered"), looks=looks)
    assert "found" in wrong(answers)
    assert "raised with generation 5" in answers["found"].told


def test_an_innocent_type_that_is_accused_is_not_the_leak() -> None:
    other = finding(suspects=[suspect("small_training.model.Model")])
    assert "found" in wrong(scored(INSTANCES, other))


def test_growth_without_a_name_is_found_and_not_named() -> None:
    assert wrong(scored(INSTANCES, finding(kind="native", suspects=[]))) == {"what"}


def test_all_right_is_passed() -> None:
    looks = (Look(3, "learning"), Look(5, "suspected"), Look(16, "confirmed"))
    answers = scored(INSTANCES, finding(), looks=looks)
    assert wrong(answers) == set()
    assert passed(tuple(answers.values()))
    assert answers["when"].figures["suspected_after"] == 5
    assert answers["when"].figures["confirmed_after"] == 16


def test_a_message_tells_when_it_was_known_where_nobody_looked_in_time() -> None:
    looks = (Look(3, "learning"), Look(8, "suspected"))
    told = (Message("incident.suspected", "i1", "suspected", 5, 0.3, True),)
    answers = scored(LATE, finding(), looks=looks, messages=told)
    assert answers["when"].figures["suspected_after"] == 5


def test_when_is_counted_from_the_first_generation_that_leaked() -> None:
    answers = scored(LATE, finding(start=12), looks=(Look(17, "suspected"),), messages=())
    assert "suspected with generation 16, after 5 of leaking" in answers["when"].told


@pytest.mark.parametrize("phase", ["train", None])
def test_another_phase_is_wrong(phase: str | None) -> None:
    assert wrong(scored(INSTANCES, finding(phase=phase))) == {"where"}


@pytest.mark.parametrize(("phase", "is_wrong"), [(None, False), ("collect", True)])
def test_what_is_read_at_the_end_of_a_generation_alone_has_no_phase(
    phase: str | None, is_wrong: bool
) -> None:
    children = Truth(KINDS["children"], 4 * MIB)
    told = finding(kind="children", phase=phase, suspects=[])
    assert ("where" in wrong(scored(children, told))) == is_wrong


@pytest.mark.parametrize(
    ("place", "is_wrong"), [(1, False), (3, False), (4, True)], ids=["first", "third", "fourth"]
)
def test_the_right_name_must_be_among_the_first_three(place: int, is_wrong: bool) -> None:
    names = [suspect(f"other.Class{number}") for number in range(place - 1)]
    answers = scored(INSTANCES, finding(suspects=[*names, ENVIRONMENT]))
    assert answers["what"].figures["place"] == place
    assert ("what" in wrong(answers)) == is_wrong


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("small_training.held.Registry.environments[*]", True),
        ("small_training.held.Registry.environments[*].prices", True),
        ("Environment", True),
        ("small_training.held.TradingEnvironment", False),
        ("small_training.held.Environment.prices", False),
    ],
)
def test_a_name_is_right_by_its_last_parts(name: str, is_right: bool) -> None:
    found = finding_of(KINDS["instances"], verdict(finding(suspects=[suspect(name)])))
    assert (found is not None) == is_right


def test_type_and_holder_are_told_with_their_places() -> None:
    holder = suspect("small_training.held.Registry.environments[*]", "holder")
    what = scored(INSTANCES, finding(suspects=[ENVIRONMENT, holder]))["what"]
    assert (what.figures["place"], what.figures["holder_place"]) == (1, 2)
    assert (
        "Environment in place 1 and small_training.held.Registry.environments[*] in place 2"
        in what.told
    )


@pytest.mark.parametrize("kind", LEAKING.values(), ids=lambda kind: kind.name)
def test_the_right_name_with_another_kind_is_wrong_unless_that_is_as_right(kind: Kind) -> None:
    alike = {told for planted, told in ALIKE if planted == kind.answer}
    suspects = [suspect(f"app.{kind.names[0]}")] if kind.names else []
    for told in get_args(FindingKind):
        called = finding(kind=told, phase=kind.phase, suspects=suspects, start=kind.first)
        answers = scored(Truth(kind, 4 * MIB), called)
        is_right = "found" not in wrong(answers) and "what" not in wrong(answers)
        assert is_right == (told == kind.answer or told in alike), told


def test_a_kept_loss_that_is_called_tensors_is_told_what_it_is() -> None:
    called = finding(kind="tensors", phase="train", suspects=[suspect("torch.Tensor")])
    what = scored(Truth(KINDS["graph"], 4 * MIB), called)["what"]
    assert what.right is False
    assert what.told.startswith("called tensors, but it is graph; torch.Tensor in place 1")


def test_what_is_as_right_is_a_kind_of_finding_and_no_more_than_another_word_for_held_objects() -> (
    None
):
    kinds = set(get_args(FindingKind))
    assert all({planted, told} <= kinds and planted != told for planted, told in ALIKE)
    assert {planted for planted, _ in ALIKE} <= {"objects", "container", "arrays"}


def test_the_document_says_what_is_as_right() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "drill.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", document, re.M)
    assert told == list(ALIKE)


def test_memory_without_a_name_is_right_by_its_kind_alone() -> None:
    assert wrong(scored(NATIVE, finding(kind="native", suspects=[]))) == set()
    assert "found" in wrong(scored(NATIVE, finding(kind="objects")))


@pytest.mark.parametrize(
    ("times", "is_wrong"), [(0.74, True), (0.76, False), (1.24, False), (1.26, True)]
)
def test_the_rate_may_be_off_by_a_quarter(times: float, is_wrong: bool) -> None:
    answers = scored(INSTANCES, finding(estimate=times * 4 * MIB))
    assert answers["how much"].figures["off"] == pytest.approx(times - 1)
    assert ("how much" in wrong(answers)) == is_wrong


@pytest.mark.parametrize(("start", "is_wrong"), [(9, True), (10, False), (14, False), (15, True)])
def test_the_start_may_be_off_by_two(start: int, is_wrong: bool) -> None:
    assert ("since when" in wrong(scored(LATE, finding(start=start)))) == is_wrong


def test_an_unknown_start_is_wrong() -> None:
    assert wrong(scored(INSTANCES, finding(start=None))) == {"since when"}


def test_a_leak_nobody_was_told_of_is_wrong() -> None:
    assert wrong(scored(INSTANCES, finding(), messages=())) == {"webhook"}


def test_one_message_with_a_wrong_signature_is_wrong() -> None:
    forged = Message("incident.confirmed", "i1", "confirmed", 16, 0.4, False)
    answers = scored(INSTANCES, finding(), messages=(CONFIRMED, forged))
    assert wrong(answers) == {"webhook"}
    assert "NOT signed rightly" in answers["webhook"].told


@pytest.mark.parametrize("event", ["incident.resolved", "incident.recovered"])
def test_a_leak_that_goes_on_and_is_called_over_is_wrong(event: str) -> None:
    over = Message(event, "i2", "suspected", 11, 0.8, True)
    answers = scored(INSTANCES, finding(), messages=(over, CONFIRMED))
    assert wrong(answers) == {"told once"}
    assert "2 incidents; called" in answers["told once"].told
    assert "with generation 10 while it went on" in answers["told once"].told


def test_something_innocent_that_is_raised_besides_is_wrong() -> None:
    other = finding(fingerprint="f2", suspects=[suspect("small_training.model.Model")])
    answers = scored(INSTANCES, finding(), other)
    assert wrong(answers) == {"besides"}
    assert "small_training.model.Model" in answers["besides"].told


def test_a_part_of_the_leak_by_another_name_is_told_and_not_wrong() -> None:
    holder = suspect("small_training.held.Registry.environments", "container")
    answers = scored(INSTANCES, finding(), finding(fingerprint="f2", suspects=[holder]))
    assert wrong(answers) == set()
    assert "a part of it" in answers["besides"].told


def test_what_rightly_grows_with_it_is_told_and_not_wrong() -> None:
    holes = Truth(KINDS["pinned_holes"], 4 * MIB)
    first = finding(kind="allocator_retained", suspects=[])
    headers = suspect("small_training.outside.PinnedHoles.headers", "container")
    answers = scored(holes, first, finding(fingerprint="f2", suspects=[headers]))
    assert wrong(answers) == set()
    assert "besides" in answers


def test_what_is_only_watched_besides_is_not_told() -> None:
    other = finding(fingerprint="f2", status="watch", suspects=[suspect("app.Other")])
    assert "besides" not in scored(INSTANCES, finding(), other)


def quiet(status: str = "ok", **seen: Any) -> dict[str, Answer]:
    answers = score(HEALTHY, Seen(verdict(status=status), **seen))
    return {answer.question: answer for answer in answers}


@pytest.mark.parametrize("status", ["ok", "filling", "watch", "learning"])
def test_a_healthy_training_that_nobody_accused_is_passed(status: str) -> None:
    assert wrong(quiet(status, looks=(Look(5, "learning"), Look(30, status)))) == set()


def test_a_healthy_training_that_is_accused_is_wrong() -> None:
    assert wrong(quiet("suspected")) == {"quiet"}


def test_an_accusation_that_was_taken_back_is_still_one() -> None:
    answers = quiet("ok", looks=(Look(9, "suspected"), Look(30, "ok")))
    assert wrong(answers) == {"quiet"}
    assert "raised with generation 8" in answers["quiet"].told


def test_any_message_about_a_healthy_training_is_wrong() -> None:
    accused = replace(CONFIRMED, summary="collect keeps 256 bytearray")
    answers = quiet("ok", messages=(accused,))
    assert "webhook" in wrong(answers)
    assert (
        "1 came, the first incident.confirmed: collect keeps 256 bytearray"
        in answers["webhook"].told
    )


def test_the_summary_counts_what_was_found_and_who_was_accused() -> None:
    right = tuple(scored(INSTANCES, finding(suspects=[suspect("app.X"), ENVIRONMENT])).values())
    drills = [
        Drilled(KINDS["instances"], right, 20.0),
        Drilled(KINDS["native"], tuple(scored(NATIVE, messages=()).values()), 20.0),
        Drilled(KINDS["flat"], tuple(quiet("suspected").values()), 20.0),
        Drilled(KINDS["sawtooth"], tuple(quiet().values()), 20.0),
        Drilled(KINDS["one_step"], (Answer("trained", False, "the training failed"),), 2.0),
    ]
    told = "\n".join(summary(drills))
    assert "1 of 2 leaks found" in told
    assert "named in first place in 0 of 1, the holder named in 0" in told
    assert "1 of 3 healthy trainings accused" in told
    assert "failed: native, flat, one_step" in told
    found = as_json(drills, [KINDS["arrays"]])
    assert not found["passed"]
    assert found["confusion"] == {
        "leaking": {"raised": 1, "quiet": 1},
        "healthy": {"raised": 1, "quiet": 2},
    }
    assert found["drills"][0]["answers"][3]["place"] == 2


def test_a_person_reads_one_line_for_each_question() -> None:
    told = list(lines(Drilled(INSTANCES.kind, tuple(scored(INSTANCES, finding()).values()), 21.0)))
    questions = [line.split("?")[0].strip() for line in told[1:-1]]
    assert questions == [
        "found", "when", "where", "what", "how much", "since when", "webhook", "told once",
    ]  # fmt: skip
    assert "4.00 MiB per generation (3.60 MiB to 4.40 MiB), planted 4.00 MiB" in told[5]
    assert told[-1].strip() == "passed after 21 s"
