"""Three leaks of three classes, sent to a server: one table says what each is, how much, and where; it adds up."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline.snapshot import (
    Batch,
    Event,
    Holder,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    batch_to_wire,
)

GB, GIB, MIB = 1e9, 2**30, 2**20
GENERATIONS = 16
# (phase, what it keeps, how many of them, bytes, who holds them) in each generation
Leaks = tuple[tuple[str, str, int, float, str], ...]
LEAKS: Leaks = (
    ("evaluate_population", "trading.TradingEnvironment", 16, 7.0 * GB, "trainer.Trainer.kept[*]"),
    ("train_population", "training.Loss", 384, 2.5 * GB, "trainer.Trainer.losses[*]"),
    ("evolve_population", "agents.DDPGAgent", 2, 0.6 * GB, "trainer.Trainer.old[*]"),
)
FIXED_AT = "training/erl_trainer.py:281"
COMMIT = "1f0c9a2b" * 5
ON_A_FORGE = {"repository": "git@github.com:erl/trading.git", "commit": COMMIT}
READ_AT = f"https://github.com/erl/trading/blob/{COMMIT}/{FIXED_AT.replace(':', '#L')}"


def batch(leaks: Leaks) -> Batch:
    private, counts, rows = 4.0 * GIB, {name: 20 for _, name, *_ in LEAKS}, []
    began = time.time() - 3600
    fix = Event(
        0, began, "fix", "detach losses", data={"phase": "train_population", "location": FIXED_AT,
        "promises": {"growth_bytes_per_generation": 500 * MIB}},
    )  # fmt: skip

    def take(kind: Any, generation: int | None, phase: str | None, books: dict[str, float]) -> None:
        n = len(rows)
        samples = {"process.anon_bytes": round(private), "process.rss_bytes": round(private)}
        samples |= {f"type.{name}.count": count for name, count in counts.items()} | books
        found = tuple(
            Holder(n, name, path, counts[name] - 20, round(size / k))
            for _, name, k, size, path in leaks
            if path
        )
        holders = found if kind == "generation_end" else ()
        at = float(n)
        watched = (Event(0, began, "watch", name) for _, name, *_ in LEAKS)
        events = (fix, *watched) if n == 0 else ()
        rows.append(
            Snapshot(n, began + at, at, generation, phase, "", kind, samples, events, holders=holders)
        )  # fmt: skip

    take("baseline", None, None, {})
    for generation in range(GENERATIONS):
        books: dict[str, float] = {}
        for phase, *_ in LEAKS:
            kept = [(name, n, size) for at, name, n, size, _ in leaks if at == phase]
            books[f"phase.{phase}.bytes"] = round(sum(size for _, _, size in kept))
            books[f"phase.{phase}.executions"] = 1
            for name, n, size in kept:
                counts[name] += n
                private += size
            take("phase_end", generation, phase, {})
        take("generation_end", generation, None, books)
    return Batch(ProcessIdentity("p1", pid=1, host="h"), tuple(rows))


def report(
    api: TestClient, eventually: Any, leaks: Leaks, environment: dict[str, str] | None = None
) -> str:
    header = RunHeader("r1", "erl", "before-fix", "generation", 25, time.time() - 3600)
    new = {name: getattr(header, name) for name in ("id", "project", "name", "unit", "total")}
    new["environment"] = environment or {}
    assert api.post("/api/v1/runs", json=new).status_code == 201
    assert api.post("/api/v1/runs/r1/batches", json=batch_to_wire(batch(leaks))).status_code == 200
    path = "/api/v1/runs/r1/verdict"
    eventually(lambda: api.get(path).json().get("generations") == GENERATIONS)
    return api.get("/runs/r1/report.md").text


def breakdown(text: str) -> list[list[str]]:
    """The rows of the table below Findings, without its heads."""
    _, _, after = text.partition(
        "| class | component | phase | growth per generation | location |\n"
    )
    table = re.match(r"(?:\|.*\n)*", after)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()][1:]  # fmt: skip


def size_of(text: str) -> float:
    """Bytes of ``+6.52 GiB``."""
    number, unit = text.removeprefix("+").split()
    return float(number) * {"GiB": GIB, "MiB": MIB}[unit]


@pytest.fixture
def of_a_healthy_run(api: TestClient, eventually: Any) -> str:
    return report(api, eventually, ())


def test_a_run_that_keeps_nothing_has_no_such_table(of_a_healthy_run: str) -> None:
    assert breakdown(of_a_healthy_run) == []


def test_a_single_leak_needs_no_sum(api: TestClient, eventually: Any) -> None:
    ((grade, *_, location),) = breakdown(report(api, eventually, LEAKS[2:]))
    assert (grade, location) == ("MINOR", "`trainer.Trainer.old[*]`")


def test_where_neither_a_fix_nor_a_holder_is_known_there_is_no_location(
    api: TestClient, eventually: Any
) -> None:
    ((*_, location),) = breakdown(
        report(api, eventually, tuple((*leak[:4], "") for leak in LEAKS[2:]))
    )
    assert location == "–"


def test_each_leak_has_its_class_component_growth_and_location(
    api: TestClient, eventually: Any
) -> None:
    rows = breakdown(report(api, eventually, LEAKS))
    assert [row[:3] for row in rows] == [
        ["CRITICAL", "`trading.TradingEnvironment`", "`evaluate_population`"],
        ["MAJOR", "`training.Loss`", "`train_population`"],
        ["MINOR", "`agents.DDPGAgent`", "`evolve_population`"],
        ["sum", "", ""],
    ]
    # What the fix of the phase named, else who holds it.
    assert [row[4] for row in rows] == [
        "`trainer.Trainer.kept[*]`", f"`{FIXED_AT}`", "`trainer.Trainer.old[*]`", "",
    ]  # fmt: skip
    sizes = [size_of(row[3]) for row in rows]
    assert sizes[:3] == [pytest.approx(size, rel=0.05) for _, _, _, size, _ in LEAKS]
    assert sizes[3] == pytest.approx(sum(sizes[:3]), rel=0.001)


def test_the_location_of_a_finding_leads_to_its_line_everywhere_it_is_told(
    api: TestClient, eventually: Any
) -> None:
    """In Markdown, in JSON, on the page and in the page saved as a file."""
    rows = breakdown(report(api, eventually, LEAKS, ON_A_FORGE))
    assert [row[4] for row in rows][1] == f"[`{FIXED_AT}`]({READ_AT})"
    found = {each["phase"]: each for each in api.get("/api/v1/runs/r1/verdict").json()["findings"]}
    told = found["train_population"]
    assert (told["location"], told["location_link"]) == (FIXED_AT, READ_AT)
    assert found["evolve_population"]["location"] is None
    for address in ("/runs/r1", "/runs/r1/report.html"):
        page = api.get(address).text.replace("<wbr>", "")
        finding = page[page.index("<code>training.Loss</code>") :].split("</article>")[0]
        link = f'<a href="{READ_AT}" rel="noopener noreferrer"><code>{FIXED_AT}</code></a>'
        assert link in finding, address


def test_without_a_repository_a_location_is_told_and_leads_nowhere(
    api: TestClient, eventually: Any
) -> None:
    report(api, eventually, LEAKS)
    found = {each["phase"]: each for each in api.get("/api/v1/runs/r1/verdict").json()["findings"]}
    told = found["train_population"]
    assert (told["location"], told["location_link"]) == (FIXED_AT, None)
    assert f'<a href="{READ_AT}"' not in api.get("/runs/r1").text
