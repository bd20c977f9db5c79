"""`leakline drill`: how right an answer is, what was called what, whose messages are believed, and what is refused."""

from __future__ import annotations

import http.client
import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
from standardwebhooks import Webhook
from tests.cli.conftest import DOCS, MIB

from leakline.analysis.results import Kind as FindingKind
from leakline.cli import drill
from leakline.drill.kinds import ALIKE, HEALTHY, KINDS, LEAKING, Kind
from leakline.drill.matrix import (
    FAILED,
    NOTHING,
    ONCE,
    columns,
    is_right,
    matrix,
    matrix_lines,
    results_page,
)
from leakline.drill.receiver import Receiver, signature_holds
from leakline.drill.scoring import Answer, Look, Message, Seen, Truth, finding_of, passed, score
from leakline.drill.telling import Drilled, as_json, lines, summary

INSTANCES = Truth(KINDS["instances"], 4 * MIB)
NATIVE = Truth(KINDS["native"], 4 * MIB)
LATE = Truth(KINDS["late_start"], 4 * MIB)
CONFIRMED = Message("incident.confirmed", "i1", "confirmed", 16, 0.4, True)


def suspect(name: str, role: str = "type") -> dict[str, Any]:
    return {"name": name, "role": role, "count_per_generation": 64, "bytes_per_generation": 4 * MIB}


ENVIRONMENT = suspect("small_training.held.Environment")


def finding(
    *suspects: dict[str, Any], estimate: float = 4 * MIB, start: int | None = 0, **changed: Any
) -> dict[str, Any]:
    """A right one about `instances`."""
    return {
        "fingerprint": "f1", "status": "confirmed", "kind": "objects", "phase": "collect",
        "suspects": list(suspects or [ENVIRONMENT]),
        "growth_bytes_per_generation": {"estimate": estimate, "low": 0.9 * estimate, "high": 1.1 * estimate},
        "started_at_generation": None if start is None else {"estimate": start, "low": start, "high": start},
        **changed,
    }  # fmt: skip


def verdict(*findings: dict[str, Any], status: str = "confirmed") -> dict[str, Any]:
    return {"status": status, "summary": "what it says", "generations": 30, "findings": findings}


def scored(truth: Truth, *findings: dict[str, Any], **seen: Any) -> dict[str, Answer]:
    answers = score(truth, Seen(verdict(*findings), **{"messages": (CONFIRMED,), **seen}))
    return {answer.question: answer for answer in answers}


def wrong(answers: dict[str, Answer]) -> set[str]:
    return {question for question, answer in answers.items() if answer.right is False}


# -- how right it was --------------------------------------------------------------------------------------


ON_THE_WAY = (Look(3, "learning"), Look(5, "suspected"), Look(16, "confirmed"))
TAKEN_BACK = (Look(6, "suspected"), Look(30, "recovered"))
TYPE = suspect("small_training.model.Model")
PART = suspect("small_training.held.Registry.environments", "container")
HEADERS = suspect("small_training.outside.PinnedHoles.headers", "container")
EARLIER = Message("incident.suspected", "i1", "suspected", 25, 0.3, True)
OVER = Message("incident.resolved", "i2", "suspected", 11, 0.8, True)
AGAIN = Message("incident.recovered", "i2", "suspected", 11, 0.8, True)
FORGED = replace(CONFIRMED, signature_valid=False)
ACCUSED = replace(CONFIRMED, summary="collect keeps 256 bytearray")
NOBODY = {"kind": "native", "suspects": []}
ALLOCATOR = finding(kind="allocator_retained", suspects=[])
QUIET = Truth(KINDS["replay_buffer"], 0)
GRAPH, CHILDREN, HOLES = (Truth(KINDS[n], 4 * MIB) for n in ("graph", "children", "pinned_holes"))


@pytest.mark.parametrize(
    ("truth", "findings", "seen", "is_wrong", "told"),
    [
        (INSTANCES, [finding()], {"looks": ON_THE_WAY}, "",
         "when: suspected with generation 4, after 5 of leaking; confirmed with generation 15, after 16 of leaking"),
        # Not found: whatever the status, only watched, taken back in the end, another accused.
        (INSTANCES, [], {"messages": ()}, "found, webhook", ""),
        (INSTANCES, [finding(status="watch")], {}, "found", ""),
        (INSTANCES, [finding(status="recovered")], {"looks": TAKEN_BACK}, "found", "found: raised with generation 5"),
        (INSTANCES, [finding(TYPE)], {}, "found", ""),
        # Growth without a name is found and not named, unless it is of a kind that has none.
        (INSTANCES, [finding(**NOBODY)], {}, "what", ""),
        (NATIVE, [finding(**NOBODY)], {}, "", ""),
        (NATIVE, [finding()], {}, "found", ""),
        (GRAPH, [finding(suspect("torch.Tensor"), kind="tensors", phase="train")], {}, "what",
         "what: called tensors, but it is graph; torch.Tensor in place 1"),
        (INSTANCES, [finding(phase="train")], {}, "where", ""),
        (INSTANCES, [finding(phase=None)], {}, "where", ""),
        # What is read at the end of a generation alone has no phase.
        (CHILDREN, [finding(kind="children", phase=None, suspects=[])], {}, "", ""),
        (CHILDREN, [finding(kind="children", suspects=[])], {}, "where", ""),
        (INSTANCES, [finding(start=None)], {}, "since when", ""),
        # Counted from the first generation that leaked, and by a message where nobody looked in time.
        (LATE, [finding(start=12)], {"looks": (Look(17, "suspected"),), "messages": ()}, "webhook",
         "when: suspected with generation 16, after 5 of leaking"),
        (LATE, [finding(start=12)], {"looks": (Look(28, "suspected"),), "messages": (EARLIER,)}, "",
         "when: suspected with generation 24, after 13 of leaking"),
        (INSTANCES, [finding()], {"messages": ()}, "webhook", ""),
        (INSTANCES, [finding()], {"messages": (CONFIRMED, FORGED)}, "webhook", "webhook: NOT signed rightly"),
        (INSTANCES, [finding()], {"messages": (OVER, CONFIRMED)}, "told once", "told once: 2 incidents; called"),
        (INSTANCES, [finding()], {"messages": (AGAIN, CONFIRMED)}, "told once",
         "told once: with generation 10 while it went on"),
        # Something innocent besides, a part of it by another name, what rightly grows with it, what is only watched.
        (INSTANCES, [finding(), finding(TYPE, fingerprint="f2")], {}, "besides", "besides: small_training.model.Model"),
        (INSTANCES, [finding(), finding(PART, fingerprint="f2")], {}, "", "besides: a part of it"),
        (HOLES, [ALLOCATOR, finding(HEADERS, fingerprint="f2")], {}, "", "besides: "),
        (INSTANCES, [finding(), finding(TYPE, fingerprint="f2", status="watch")], {}, "", ""),
        # Nobody may be accused of a healthy training, also where that was taken back, or told of it.
        (QUIET, [], {"messages": (), "looks": TAKEN_BACK}, "quiet", "quiet: raised with generation 5"),
        (QUIET, [], {"messages": (ACCUSED,)}, "quiet, webhook",
         "webhook: 1 came, the first incident.confirmed: collect keeps 256 bytearray"),
    ],
)  # fmt: skip
def test_each_question_is_answered_rightly_or_not(
    truth: Truth, findings: list[Any], seen: dict[str, Any], is_wrong: str, told: str
) -> None:
    answers = scored(truth, *findings, **seen)
    assert ", ".join(name for name in answers if answers[name].right is False) == is_wrong
    assert passed(tuple(answers.values())) == (is_wrong == "")
    question, _, words = told.partition(": ")
    assert not told or words in answers[question].told
    # What is only watched is not told.
    assert ("besides" in answers) == ("besides" in is_wrong + told)


@pytest.mark.parametrize(("place", "is_wrong"), [(1, False), (3, False), (4, True)])
def test_the_right_name_must_be_among_the_first_three(place: int, is_wrong: bool) -> None:
    names = [suspect(f"other.Class{number}") for number in range(place - 1)]
    answers = scored(INSTANCES, finding(*names, ENVIRONMENT))
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
    found = finding_of(KINDS["instances"], verdict(finding(suspect(name))))
    assert (found is not None) == is_right


def test_type_and_holder_are_told_with_their_places() -> None:
    name = "small_training.held.Registry.environments[*]"
    what = scored(INSTANCES, finding(ENVIRONMENT, suspect(name, "holder")))["what"]
    assert (what.figures["place"], what.figures["holder_place"]) == (1, 2)
    assert f"Environment in place 1 and {name} in place 2" in what.told


@pytest.mark.parametrize("kind", LEAKING.values(), ids=lambda kind: kind.name)
def test_the_right_name_with_another_kind_is_wrong_unless_that_is_as_right(kind: Kind) -> None:
    alike = {told for planted, told in ALIKE if planted == kind.answer}
    suspects = [suspect(f"app.{kind.names[0]}")] if kind.names else []
    for told in get_args(FindingKind):
        called = finding(kind=told, phase=kind.phase, suspects=suspects, start=kind.first)
        answers = scored(Truth(kind, 4 * MIB), called)
        is_right = wrong(answers).isdisjoint({"found", "what"})
        assert is_right == (told == kind.answer or told in alike), told


def test_what_is_as_right_is_another_word_for_held_objects_and_is_documented() -> None:
    kinds = set(get_args(FindingKind))
    assert all({planted, told} <= kinds and planted != told for planted, told in ALIKE)
    assert {planted for planted, _ in ALIKE} <= {"objects", "container", "arrays"}
    document = (DOCS / "drill.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| `(\w+)` \|", document, re.M) == list(ALIKE)


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


def quiet(status: str = "ok", **seen: Any) -> dict[str, Answer]:
    answers = score(QUIET, Seen(verdict(status=status), **seen))
    return {answer.question: answer for answer in answers}


@pytest.mark.parametrize("status", ["ok", "filling", "watch", "learning"])
def test_a_healthy_training_that_nobody_accused_is_passed(status: str) -> None:
    assert wrong(quiet(status, looks=(Look(5, "learning"), Look(30, status)))) == set()


FAILS = Drilled(KINDS["one_step"], (Answer("trained", False, "the training failed"),), 2.0)


def test_the_summary_counts_what_was_found_and_who_was_accused() -> None:
    right = tuple(scored(INSTANCES, finding(suspect("app.X"), ENVIRONMENT)).values())
    drills = [
        Drilled(KINDS["instances"], right, 20.0),
        Drilled(KINDS["native"], tuple(scored(NATIVE, messages=()).values()), 20.0),
        Drilled(KINDS["flat"], tuple(quiet("suspected").values()), 20.0),
        Drilled(KINDS["sawtooth"], tuple(quiet().values()), 20.0),
        FAILS,
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


# -- what was called what ----------------------------------------------------------------------------------


def drilled(planted: str, kind: str = "", name: str = "", looks: tuple[Look, ...] = ()) -> Drilled:
    """A drill that was called ``kind``, or nothing."""
    findings = [finding(suspect(name), kind=kind)] if kind else []
    said = verdict(*findings, status="confirmed" if kind else "ok")
    seen = Seen(said, looks, (CONFIRMED,) if kind else ())
    return Drilled(KINDS[planted], score(Truth(KINDS[planted], 4 * MIB), seen), 20.0)


DRILLS = [
    drilled("instances", "objects", "small_training.held.Environment"),
    drilled("graph", "tensors", "torch.Tensor"),
    drilled("native", "arrays", "app.Other"),
    drilled("native"),
    drilled("flat"),
    drilled("sawtooth", looks=(Look(9, "suspected"), Look(30, "ok"))),
    drilled("replay_buffer", "arrays", "numpy.ndarray"),
    FAILS,
]


def test_each_drill_is_counted_where_it_was_called_and_what_is_no_kind_stands_last() -> None:
    assert matrix(DRILLS) == {
        "instances": {"objects": 1}, "graph": {"tensors": 1}, "native": {"arrays": 1, NOTHING: 1},
        "flat": {NOTHING: 1}, "sawtooth": {ONCE: 1}, "replay_buffer": {"arrays": 1}, "one_step": {FAILED: 1},
    }  # fmt: skip
    assert columns(matrix(DRILLS)) == ["arrays", "objects", "tensors", ONCE, FAILED, NOTHING]


@pytest.mark.parametrize(
    ("planted", "told", "right"),
    [
        ("instances", "objects", True),
        ("instances", "container", True),
        ("instances", "native", False),
        ("native", NOTHING, False),
        ("flat", NOTHING, True),
        ("flat", ONCE, False),
        ("flat", "objects", False),
        ("flat", FAILED, False),
    ],
)
def test_right_is_what_was_planted_or_what_is_as_right(
    planted: str, told: str, right: bool
) -> None:
    assert is_right(planted, told) is right


def test_a_terminal_marks_what_is_wrong() -> None:
    told = {line.split()[0]: line.split()[1:] for line in matrix_lines(DRILLS)}
    assert told["instances"] == [".", "1", ".", ".", ".", "."]
    assert told["native"] == ["1!", ".", ".", ".", ".", "1!"]
    assert told["flat"] == [".", ".", ".", ".", ".", "1"]


def test_the_page_has_a_row_for_each_and_says_how_many_are_wrong() -> None:
    nowhere = replace(KINDS["figures"], needs=("not_here",))
    page = results_page(DRILLS, [nowhere], {"Leakline": "0.1.0", "written": "2026-01-31"})
    assert "8 drills, 6 called wrongly; Leakline 0.1.0, written 2026-01-31." in page
    assert "| `graph` |  |  | 1! |  | graph |" in page
    assert "Not drilled: `figures` (needs not_here)." in page
    assert "| `instances` | passed |" in page and "| `graph` | failed |" in page


def test_the_page_of_the_documents_is_of_every_kind_there_is_and_says_where_it_is_wrong() -> None:
    page = (DOCS / "drill-results.md").read_text()
    matrix_part = page.partition("## How right the rest was")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", matrix_part, re.MULTILINE)
    assert [name for name, _ in rows] == [*LEAKING, *HEALTHY]
    # What is published is no worse than what the release asks for.
    assert not any("!" in cells for _, cells in rows)
    assert f"{len(rows)} drills, 0 called wrongly" in page
    for name, cells in rows:
        right = LEAKING[name].answers if name in LEAKING else (NOTHING,)
        assert cells.rpartition("|")[2].strip() == " or ".join(right).replace("_", " ")


# -- whose messages are believed: the library that signs them is asked what is right -----------------------

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
OTHER = "whsec_" + "YWJjZGVmR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
BODY = json.dumps({"type": "incident.suspected", "data": {"run": {"id": "r1"}}}).encode()
AT = 1_760_000_000


def signed(secret: str = SECRET, body: bytes = BODY, at: int = AT) -> dict[str, str]:
    moment = datetime.fromtimestamp(at, tz=UTC)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(at),
        "webhook-signature": Webhook(secret).sign("msg_1", moment, body.decode()),
    }


@pytest.mark.parametrize(
    "headers",
    [
        signed(OTHER),
        signed(body=b"{}"),
        signed(at=AT - 301),
        {**signed(), "webhook-id": "msg_2"},
        {**signed(), "webhook-timestamp": str(AT + 1)},
        {**signed(), "webhook-timestamp": "now"},
        {**signed(), "webhook-signature": "v1,é"},
        {name: text for name, text in signed().items() if name != "webhook-signature"},
        {},
    ],
    ids=["secret", "body", "long ago", "id", "time", "no time", "no base64", "no signature", "nothing"],
)  # fmt: skip
def test_what_was_not_signed_so_is_not_believed(headers: dict[str, str]) -> None:
    assert not signature_holds(SECRET, headers, BODY, AT)


def test_a_signed_message_is_believed_also_with_a_second_signature() -> None:
    headers = signed()
    assert signature_holds(SECRET, headers, BODY, AT + 5)
    both = f"{signed(OTHER)['webhook-signature']} {headers['webhook-signature']}"
    assert signature_holds(SECRET, {**headers, "webhook-signature": both}, BODY, AT)


def _post(receiver: Receiver, headers: dict[str, str], body: bytes) -> int:
    address = urlsplit(receiver.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    connection.request("POST", address.path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_what_is_posted_is_kept_by_run_with_what_its_signature_was_worth() -> None:
    with Receiver() as receiver:
        now = int(time.time())
        assert _post(receiver, signed(receiver.secret, at=now), BODY) == 204
        assert _post(receiver, signed(OTHER, at=now), BODY) == 401
        assert _post(receiver, {}, b"not JSON") == 401
        receiver.wait("r1", lambda messages: len(messages) == 2, 5)
        found = receiver.of_run("r1")
        assert [one.signature_valid for one in found] == [True, False]
        assert [one.event for one in found] == ["incident.suspected"] * 2
        # Waiting for what does not come ends.
        receiver.wait("r2", lambda messages: bool(messages), 0.05)
        assert receiver.of_run("r2") == []


# -- what is refused, and what there is --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("leaky", "leakline drill --list"),
        ("cycles --all", "--all"),
        ("cycles --generations 0", "from 1 to"),
        ("cycles --generations 100000", "from 1 to"),
        ("cycles --generations many", "many"),
        ("late_start --generations 12", "begins in generation 12: train 13 or more"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(
    leakline: Any, arguments: str, said: str
) -> None:
    answer = leakline("drill", *arguments.split())
    assert (answer.status, answer.output) == (2, "")
    assert said in answer.errors.splitlines()[-1]


def test_what_cannot_be_planted_here_says_in_one_line_how_it_could(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package that is nowhere stands for torch on a machine without it.
    graph = replace(KINDS["graph"], needs=("torch_that_is_not_here",))
    monkeypatch.setitem(drill.KINDS, "graph", graph)
    said = leakline("drill", "graph")
    assert said.status == 1
    assert "pip install torch_that_is_not_here" in said.error


def test_without_the_server_it_says_in_one_line_how_to_install_it(
    leakline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What comes first on the path stands for a package of the server that is not there.
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here', name='uvicorn')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = leakline("drill", "flat")
    assert said.status == 1
    assert "did not start" in said.error and "pip install 'leakline[server]'" in said.error


def test_a_page_that_cannot_be_written_is_said_in_one_line(leakline: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    page = str(tmp_path / "file" / "page.md")
    said = leakline("drill", "flat", "--generations", "1", "--results", page)
    assert said.status == 1
    assert said.errors.splitlines()[-1].endswith("name another FILE")


def test_the_list_names_every_kind_and_what_it_needs(leakline: Any) -> None:
    said = leakline("drill", "--list")
    assert said.status == 0
    for kind in KINDS.values():
        (line,) = [one for one in said.output.splitlines() if one.split()[:1] == [kind.name]]
        assert kind.summary in line
        assert all(need in line for need in kind.needs)
    listed = {
        each["kind"]: each for each in json.loads(leakline("drill", "--list", "--json").output)
    }
    assert listed.keys() == KINDS.keys()
    assert {name for name, each in listed.items() if each["leaks"]} == LEAKING.keys()


def test_there_are_twelve_leaking_kinds_and_six_healthy_ones_at_least() -> None:
    assert len(LEAKING) >= 12
    assert len(HEALTHY) >= 6
    assert not [kind.name for kind in HEALTHY.values() if kind.leaks or kind.names]
