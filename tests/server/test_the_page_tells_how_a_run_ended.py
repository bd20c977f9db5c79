"""How a run ended, what of it was delivered, what its attempts were and what it said last, on the pages."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.web import ending_view, inventory
from leakline_server.web.run_view import progress

GIB = 2**30


def process(**changed: Any) -> dict[str, Any]:
    return {
        "instance": "p1", "rank": 0, "role": "main", "pid": 7, "host": "box", "attempt": 1,
        "started_at": "2026-01-31T12:00:00.000Z", "last_seen_at": "2026-01-31T12:10:00.000Z",
        "ended_at": "2026-01-31T12:10:02.000Z", "end_state": "killed", "end_reason": "memory: 9.70 GiB of 10.00 GiB",
        "presumed": False, "taken": 10, "stored": 10, "left_out": 0, "lost": {}, "log_lines": [],
        "log_lines_left_out": 0, "growth_bytes_per_generation": None, "findings": [],
        "clock_skew_seconds": None, **changed,
    }  # fmt: skip


def a_run(**changed: Any) -> dict[str, Any]:
    return {
        "state": "killed", "reason": "memory: 9.70 GiB of 10.00 GiB", "presumed": False, "unit": "generation",
        "last_seen_at": "2026-01-31T12:10:00.000Z", "processes": [process()], "attempts": [], "attempts_left_out": 0,
        "processes_left_out": 0,
        **changed,
    }  # fmt: skip


def snapshot(**changed: Any) -> dict[str, Any]:
    return {
        "process": "p1", "sequence": 10, "time": 1769861400.0, "generation": 7, "phase": "evaluate",
        "kind": "phase_end", "label": "generation 7: after evaluate",
        "samples": {
            "process.rss_bytes": 97 * GIB // 10, "cgroup.used_bytes": 98 * GIB // 10, "cgroup.limit_bytes": 10 * GIB,
        }, **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("done", "total", "told"),
    [(25, 25, "25 of 25 generations"), (7, 25, "7 of 25 generations"), (1, None, "1 generation")],
)
def test_a_run_says_how_many_of_its_generations_are_complete(
    done: int, total: int | None, told: str
) -> None:
    run = {"unit": "generation", "generations": done, "total": total, "state": "finished"}
    assert progress(run) == told


def test_a_killed_run_tells_its_last_reading() -> None:
    section = ending_view.end(a_run(), [snapshot()])
    assert section is not None
    assert section.note == (
        "Killed for memory. 9.70 GiB of 10.00 GiB. Last reading of rank 0: RSS 9.70 GiB of a limit of 10.00 GiB at "
        "generation 7: after evaluate, 2.00 s before."
    )
    assert section.table is not None
    (row,) = section.table.rows
    assert [cell.text for cell in row.cells] == [
        "0", "killed for memory", "2026-01-31 12:10 UTC", "9.70 GiB", "9.80 GiB", "98 %", "not measured",
        "generation 7: after evaluate",
    ]  # fmt: skip


def test_a_silent_run_tells_since_when_and_promises_no_seconds() -> None:
    silent = process(end_state="silent", end_reason="", presumed=True)
    section = ending_view.end(
        a_run(state="silent", reason="", processes=[silent]), [snapshot(label="sample")]
    )
    assert section is not None
    assert section.note == (
        "It stopped sending without saying that it ends. Last reading of rank 0: RSS 9.70 GiB of a limit of "
        "10.00 GiB at generation 7, sample."
    )


def test_of_several_processes_the_one_that_ended_worst_is_told() -> None:
    processes = [
        process(instance="p1", end_state="failed", end_reason="RuntimeError"),
        process(instance="p2", rank=1),
        process(instance="p0", rank=1, attempt=0),
    ]
    rows = [snapshot(process=name) for name in ("p1", "p2", "p0")]
    section = ending_view.end(a_run(processes=processes), rows)
    assert section is not None
    assert "Last reading of rank 1" in section.note
    assert section.table is not None
    assert len(section.table.rows) == 2


def test_of_processes_that_were_killed_the_one_that_ran_out_of_memory_is_told() -> None:
    processes = [
        process(instance="p0", end_reason="SIGTERM"),
        process(instance="p1", rank=1),
        process(instance="p2", rank=2, role="child"),
    ]
    rows = [snapshot(process=name) for name in ("p2", "p1", "p0")]
    section = ending_view.end(a_run(processes=processes), rows)
    assert section is not None
    assert "Last reading of rank 1" in section.note


def test_an_attempt_ended_as_the_worst_of_its_main_processes() -> None:
    processes = [
        process(instance="p0", end_reason="SIGTERM"),
        process(instance="p1", rank=1, end_state="failed", end_reason="ValueError"),
        process(instance="p2", rank=1, role="child"),
        process(instance="p3", rank=1, role="child", end_state=None, end_reason="", ended_at=None),
    ]
    attempt = {"number": 1, "started_at": "2026-01-31T12:00:00.000Z", "environment": {}}
    section = ending_view.attempts(a_run(processes=processes, attempts=[attempt]))
    assert section is not None and section.table is not None
    assert "failed: ValueError" in [cell.text for cell in section.table.rows[0].cells]


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_run_that_goes_on_or_finished_has_no_such_section(state: str) -> None:
    assert ending_view.end(a_run(state=state, reason=""), [snapshot()]) is None


def test_the_account_of_a_process_closes() -> None:
    lost = {"queue_full": 2, "spool_thinned": 10, "thinned": 40, "events": 1}
    section = ending_view.delivery([process(taken=100, stored=80, lost=lost)])
    assert section is not None
    assert section.table is not None
    (row,) = section.table.rows
    assert [cell.text for cell in row.cells] == [
        "0", "main", "1", "100", "80", "12", "8", "queue full 2, spool thinned 10, thinned 40, events 1",
    ]  # fmt: skip
    assert "LEAKLINE_SPOOL_LIMIT" in section.note
    assert "LEAKLINE_MAX_OVERHEAD" in section.note


def test_every_reason_that_counts_snapshots_is_explained() -> None:
    from leakline.accounts import DROPPED, THINNED

    assert set(ending_view._REASONS) >= DROPPED | THINNED


def test_a_reason_nobody_knows_is_shown_and_not_explained() -> None:
    section = ending_view.delivery([process(lost={"<b>new</b>": 3})])
    assert section is not None
    assert section.note == ""


def test_attempts_tell_what_changed_between_them() -> None:
    packages = {"torch": "2.1", "numpy": "2.0", "old": "1"}
    attempts = [
        {
            "number": 1, "started_at": "2026-01-31T12:00:00.000Z",
            "environment": {
                "commit": "a" * 40, "dirty": True, "command_line": ["python", "-m", "train"], "packages": packages,
            },
        },
        {
            "number": 2, "started_at": "2026-01-31T13:00:00.000Z",
            "environment": {
                "commit": "b" * 40, "dirty": False, "packages": {"torch": "2.2", "numpy": "2.0", "new": "3"},
            },
        },
        {"number": 3, "started_at": "2026-01-31T14:00:00.000Z", "environment": {}},
    ]  # fmt: skip
    processes = [process(), process(instance="p2", attempt=2, ended_at=None, end_state=None)]
    section = ending_view.attempts(a_run(attempts=attempts, processes=processes))
    assert section is not None
    assert section.table is not None
    told = [[cell.text for cell in row.cells] for row in section.table.rows]
    assert told[0][0] == "3"
    assert told[1][3:] == [
        "running", "bbbbbbbbbb", "–", "3 packages; torch 2.1 → 2.2, new 3 is new, old is gone",
    ]  # fmt: skip
    assert told[2][3:] == [
        "killed for memory", "aaaaaaaaaa with changes", "python -m train", "3 packages",
    ]  # fmt: skip


def test_an_attempt_before_the_newest_does_not_run_any_more() -> None:
    started = "2026-01-31T12:00:00.000Z"
    attempts = [{"number": n, "started_at": started, "environment": {}} for n in (1, 2)]
    nothing_told = {"ended_at": None, "end_state": None, "end_reason": ""}
    first, second = process(**nothing_told), process(instance="p2", attempt=2, **nothing_told)
    section = ending_view.attempts(a_run(attempts=attempts, processes=[first, second]))
    assert section is not None
    assert section.table is not None
    assert [row.cells[3].text for row in section.table.rows] == ["running", "no end told"]
    processes = inventory.processes([first, second]).table
    assert processes is not None
    assert [row.cells[4].text for row in processes.rows] == ["no end told", "running"]


def test_lines_are_open_where_the_run_did_not_finish() -> None:
    second = process(instance="p2", attempt=2, rank=1, log_lines=["two", "three"])
    said = [process(log_lines=["one"]), second]
    section = ending_view.lines(a_run(processes=said))
    assert section is not None
    assert section.table is not None
    assert [[cell.text for cell in row.cells] for row in section.table.rows] == [
        ["1", "0", "one"], ["2", "1", "two"], ["2", "1", "three"],
    ]  # fmt: skip
    assert not section.fold
    finished = ending_view.lines(a_run(state="finished", processes=said))
    assert finished is not None
    assert finished.fold
    assert ending_view.lines(a_run()) is None


def test_what_all_lines_have_in_common_has_no_column() -> None:
    second = process(instance="p2", attempt=2, log_lines=["two"])
    alone = ending_view.lines(a_run(processes=[second]))
    both = ending_view.lines(a_run(processes=[second, process(log_lines=["one"])]))
    assert alone is not None
    assert both is not None
    assert alone.table is not None
    assert both.table is not None
    assert [column.label for column in alone.table.columns] == ["line"]
    assert [[cell.text for cell in row.cells] for row in both.table.rows] == [
        ["1", "one"],
        ["2", "two"],
    ]


# -- on the page -----------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "{% raw %}", "]]></script>",
    "javascript:alert(1)", "\u202egnirts", "&lt;b&gt;", "' onmouseover='x", "x" * 1000,
)  # fmt: skip


def test_hostile_lines_are_text(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    body = run.wire(0, 3)
    event = {"sequence": 0, "time": run.started, "kind": "log", "name": "log"}
    body["events"].append(event | {"data": {"lines": list(HOSTILE)}})
    assert api.post("/api/v1/runs/r1/batches", json=body).status_code == 200
    page = api.get("/runs/r1").text
    section = page[page.index('id="lines"') :]
    section = section[: section.index("</section>")]
    assert "<img" not in section
    assert "<script" not in section
    cells = re.findall(r"<code>(.*?)</code>", section)
    shown = [html.unescape(re.sub("<wbr>|\u200b", "", each)) for each in cells]
    # A mark that turns the direction of what follows is no part of what is meant.
    assert shown == [line.replace("\u202e", "") for line in HOSTILE]


def test_the_state_with_its_reason_is_in_the_head_and_in_the_list(
    api: TestClient, make_run: Any
) -> None:
    run = make_run()
    run.create(api)
    run.send(api, 1, 6)
    told = {
        "instance": "p1",
        "state": "failed",
        "reason": "ValueError",
        "ended_at": run.started + 9,
    }
    assert api.patch("/api/v1/runs/r1", json=told).status_code == 200
    page = api.get("/runs/r1").text
    assert '<span class="state" data-state="failed"><b>failed: ValueError</b></span>' in page
    assert 'id="end"' in page
    assert "Failed: ValueError. Last reading of rank 0: RSS 1.0" in page
    assert '<span class="state" data-state="failed">failed: ValueError</span>' in api.get("/").text


def test_a_run_without_processes_has_a_page(api: TestClient, make_run: Any) -> None:
    make_run().create(api)
    told = {"state": "killed", "reason": "SIGTERM"}
    assert api.patch("/api/v1/runs/r1", json=told).status_code == 200
    page = api.get("/runs/r1")
    assert page.status_code == 200
    assert "killed by SIGTERM" in page.text
