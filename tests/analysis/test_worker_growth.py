"""Findings about child processes name what their own scans have found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builder import MIB, Training
from pieces import with_events, with_series

from leakline.analysis import examine
from leakline.analysis.findings.verdict_summary import finding_sentence
from leakline.analysis.findings.worker_growth import kept_in_child, suspects_in_children
from leakline.analysis.results import Finding, Suspect
from leakline.analysis.run_history import RunHistory
from leakline.snapshot import Event


def scanned(time: float, worker: Any, types: Any, holder: Any = "", share: Any = 1.0) -> Event:
    data = {"worker": worker, "types": types, "holder": holder, "share": share}
    return Event(0, 1e9 + time, "mark", "a scan", data=data)


def history_of(resident: float, *events: Event, gained: float = 6) -> RunHistory:
    """Two readers grow by ``gained`` and 3 MiB per generation, their resident memory by ``resident`` MiB."""
    history = with_series(
        Training(generations=40).history(),
        {
            "children.count": lambda g: 2,
            "children.uss_bytes": lambda g: (50 + (gained + 3) * g) * MIB,
            "children.rss_bytes": lambda g: (900 + resident * g) * MIB,
            "children.process.reader-0.uss_bytes": lambda g: (25 + gained * g) * MIB,
            "children.process.reader-1.uss_bytes": lambda g: (25 + 3 * g) * MIB,
        },
    )
    return with_events(history, *events)


def finding_of(resident: float, *events: Event) -> Finding:
    verdict = examine(history_of(resident, *events))
    (found,) = [f for f in verdict.findings if f.kind == "children"]
    return found


def test_the_newest_scan_of_each_growing_child_is_named() -> None:
    found = finding_of(
        9,
        scanned(1, "reader-0", ["list"], "app.old"),
        scanned(2, "reader-1", ["app.Frame"], "app.Reader.frames"),
        scanned(3, "reader-0", ["torch.Tensor", "app.Sample"], "app.Cache.samples", 0.9),
        scanned(4, "gone", ["app.Other"], "app.others"),
    )
    assert found.status == "confirmed"
    assert [(s.name, s.role) for s in found.suspects] == [
        ("reader-0", "process"),
        ("torch.Tensor", "type"), ("app.Cache.samples", "holder"), ("app.Sample", "type"),
        ("reader-1", "process"), ("app.Frame", "type"), ("app.Reader.frames", "holder"),
    ]  # fmt: skip
    sizes = [s.bytes_per_generation for s in found.suspects if s.role == "type"]
    assert sizes == [pytest.approx(5.4 * MIB), None, pytest.approx(3 * MIB)]
    sentence = finding_sentence(found, "generation")
    said = "memory of child processes (reader-0, reader-1), namely Tensor in reader-0, held by app.Cache.samples: 9.0"
    assert said in sentence
    assert found.advice == (
        "app.Cache.samples in the child process keeps Tensor: bound or clear it.",
    )


@pytest.mark.parametrize(
    ("resident", "events", "status"),
    [
        (0, (), "confirmed"),
        (0, (scanned(1, "reader-0", []),), "suspected"),
        (9, (scanned(1, "reader-0", []),), "confirmed"),
        (0, (scanned(1, "reader-0", ["app.Frame"]),), "confirmed"),
        (0, (scanned(1, "gone", []),), "confirmed"),
    ],
    ids=["not scanned", "nothing grows", "resident memory grows", "a type grows", "another child"],
)
def test_copied_pages_without_a_growing_type_are_not_confirmed(
    resident: float, events: tuple[Event, ...], status: str
) -> None:
    found = finding_of(resident, *events)
    assert found.status == status
    is_named = any(event.data["types"] for event in events)
    assert any("copy the pages" in line for line in found.advice) == (
        resident == 0 and not is_named
    )
    assert (kept_in_child(found) == ("app.Frame", "", "reader-0")) == is_named


def test_children_that_keep_the_same_are_named_together() -> None:
    scans = [scanned(1, f"reader-{i}", ["app.Frame"], "app.frames", 0.6) for i in range(2)]
    found = finding_of(9, *scans)
    assert kept_in_child(found) == ("app.Frame", "app.frames", "reader-0, reader-1")
    assert found.suspects[2].bytes_per_generation == pytest.approx(0.6 * 9 * MIB)


def test_a_scan_before_the_growth_names_nothing() -> None:
    found = finding_of(9, scanned(-1e9, "reader-0", ["app.Frame"]))
    assert kept_in_child(found) is None
    assert "memory of child processes (reader-0, reader-1): " in finding_sentence(
        found, "generation"
    )
    assert not any(s.name == "app.Frame" for s in found.suspects)


def test_the_advice_names_the_setting_until_a_worker_is_scanned() -> None:
    def has_setting(environment: dict[str, object], *events: Event) -> bool:
        history = replace(history_of(9, *events), environment=environment)
        (found,) = [f for f in examine(history).findings if f.kind == "children"]
        return any("LEAKLINE_SCAN_WORKERS=1" in line for line in found.advice)

    linux = {"python": "3.12.1", "platform": "Linux-6.1"}
    assert has_setting(linux)
    assert not has_setting(linux, scanned(1, "reader-0", []))
    assert not has_setting({**linux, "watched_from_outside": True})
    assert not has_setting({"platform": "Linux-6.1"})


CHILD = (Suspect("reader-0", "process", None, 100.0),)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (scanned(1, ["reader-0"], ["a.B"]), None),
        (scanned(1, "reader-0", "a.B"), ()),
        (scanned(1, "reader-0", ["a.B"], share="all"), ()),
        (scanned(1, "reader-0", ["a.B"], {}, 7), (*CHILD, Suspect("a.B", "type", None, 100.0))),
        (scanned(1, "reader-0", [3], None, 0.5), (*CHILD, Suspect("3", "type", None, 50.0))),
        (Event(0, 1.0, "mark", "started"), None),
    ],
    ids=["a list", "one text", "a word", "too much", "a number", "a mark of the program"],
)  # fmt: skip
def test_unknown_forms_of_an_event_name_nothing(event: Event, expected: Any) -> None:
    """Any program may send marks."""
    assert suspects_in_children([event], CHILD) == expected


def test_handles_of_the_parent_are_not_what_a_child_keeps() -> None:
    found = finding_of(9)
    handles = Suspect("subprocess.Popen", "type", 1.0, 90.0), Suspect("app.servers", "holder", 1.0)
    found = replace(found, suspects=(*found.suspects, *handles))
    assert kept_in_child(found) is None
    assert "memory of child processes (reader-0, reader-1)" in finding_sentence(found, "generation")
