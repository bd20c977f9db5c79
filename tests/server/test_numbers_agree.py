"""A finding has one count, rate and window in the list, page, terminal, report, Markdown, Slack and API."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.analysis.builder import (
    EVALUATE,
    MIB,
    Leak,
    Training,
    episode_history,
    kept_environments,
    loss_graph,
)
from tests.json_batches import batch_to_wire
from tests.server.conftest import StartServer

from leakline.analysis import examine, history_from_batches
from leakline.analysis.results import Finding, Suspect
from leakline.analysis.run_history import RunHistory
from leakline.analysis.status import LOADING_SECONDS
from leakline.cli import main
from leakline.report import Recording, build, render
from leakline.snapshot import (
    Batch,
    ProcessIdentity,
    RunHeader,
    Snapshot,
    header_to_wire,
)
from leakline_server.alerts.alert_payload import CONFIRMED, ExaminedRun, incident_facts
from leakline_server.alerts.formats import FORMATS, Message

GENERATIONS = 24
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"([+\u2212-]?[\d,]+(?:\.\d+)?) (B|KiB|MiB|GiB)"
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True)
class Case:
    header: RunHeader
    batches: tuple[Batch, ...]

    @property
    def history(self) -> RunHistory:
        return history_from_batches(self.header, self.batches)


def built(run: str, *trainings: Training) -> Case:
    trainings = tuple(replace(training, run=run, generations=GENERATIONS) for training in trainings)
    whole = (
        Batch(b[0].process, tuple(s for each in b for s in each.snapshots))
        for b in (t.batches() for t in trainings)
    )
    return Case(trainings[0].header(), tuple(whole))


def readings(run: str, unit: str, samples: Callable[[int], Mapping[str, float]]) -> Case:
    """Return a case with one reading at the end of each generation, or each second."""
    by_time = unit == "second"
    number = (lambda at: None) if by_time else (lambda at: at)
    # Growth per second is no leak before LOADING_SECONDS.
    count = LOADING_SECONDS + GENERATIONS if by_time else GENERATIONS
    rows = tuple(
        Snapshot(at, 1e9 + at, float(at), number(at), None, "", "generation_end",
                 {name: round(value) for name, value in samples(at).items()})
        for at in range(count)
    )  # fmt: skip
    who = ProcessIdentity("p1", pid=1, host="h")
    batches = tuple(Batch(who, rows[at : at + 100]) for at in range(0, count, 100))
    return Case(RunHeader(run, "p", run, unit, None, 1e9), batches)


def children(at: int) -> dict[str, float]:
    grown = 300 * MIB + at * 4.26 * MIB
    return {
        "process.rss_bytes": 900 * MIB, "process.anon_bytes": 800 * MIB, "children.count": 2,
        "children.uss_bytes": grown, "children.process.loader-0.uss_bytes": grown - 100 * MIB,
        "children.process.loader-1.uss_bytes": 100 * MIB,
    }  # fmt: skip


def seconds(at: int) -> dict[str, float]:
    return {
        "process.rss_bytes": 400 * MIB + at * 8 * MIB, "process.anon_bytes": 300 * MIB + at * 8 * MIB,
        "type.app.Frame.count": 10 + 3 * at,
    }  # fmt: skip


RARELY = Leak(
    EVALUATE, 9 * MIB, {"matplotlib.figure.Figure": 1, "figures.open": 1},
    times=lambda g: float(g % 3 == 0),
)  # fmt: skip
CASES = [
    built("single", Training(leaks=(kept_environments(),))),
    built(
        "ranks", Training(leaks=(kept_environments(),), instance="p0"),
        Training(leaks=(kept_environments(),), instance="p1", rank=1, seed=2),
    ),
    built("container", Training(leaks=(episode_history(),))),
    built("graph", Training(leaks=(loss_graph(),))),
    built("rarely", Training(leaks=(RARELY,), noise=0.2 * MIB)),
    readings("children", "generation", children),
    readings("seconds", "second", seconds),
]  # fmt: skip


def sizes_in(text: str, unit: str) -> list[tuple[float, float]]:
    """Return (bytes, half a unit of the last digit) of each size per generation."""
    found = re.findall(rf"{_SIZE}(?: \([^)]*\))? per {unit}", text)
    return [
        (_number(n) * _SIZES[of], 0.51 * (0.01 if "." in n else 1.0) * _SIZES[of])
        for n, of in found
    ]


def counts_in(text: str, name: str, unit: str) -> list[tuple[float, float]]:
    """Return (count per generation, tolerance) of each rate directly next to the name of the suspect."""
    path = rf"(?:[\w.\[\]*<>]*\.)?{re.escape(name)}\b"
    words = r"(?: more)?(?: entr(?:y|ies) in)?"
    graph = r"(?: with (?:a|their) graphs?)?"
    each = [
        (rf"{_NUMBER}{words} {path}{graph} per {unit}", False),
        (rf"{_NUMBER}{words} {path}{graph} about every {_NUMBER} {unit}s", True),
        (rf"{path}[`*]? \([^)]*\): {_NUMBER} more per {unit}", False),
        (rf"{path}[`*]? \([^)]*\): {_NUMBER} more about every {_NUMBER} {unit}s", True),
        (rf"(?:number|length) of {path}{graph} grows by {_NUMBER} per {unit}", False),
        (
            rf"(?:number|length) of {path}{graph} grows by {_NUMBER} about every {_NUMBER} {unit}s",
            True,
        ),
        (rf"{path}{graph} \+{_NUMBER}(?: per|,|$)", False),
        (rf"{path}{graph} {_NUMBER} more about every {_NUMBER} {unit}s", True),
        # A rise at regular intervals, every third generation.
        (
            rf"(?:number of |keeps {_NUMBER} ){path}(?: grows by {_NUMBER})? every {_NUMBER}(?:st|nd|rd|th) {unit}",
            True,
        ),
    ]
    rates = []
    for pattern, is_distance in each:
        for match in re.finditer(pattern, text):
            numbers = [_number(n) for n in match.groups() if n is not None]
            rate = numbers[0] / numbers[1] if is_distance else numbers[0]
            rates.append(
                (rate, max(0.5 if rate >= 10 else 0.051, 0.05 * rate if is_distance else 0.0))
            )
    return rates


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("\u2212", "-").replace("+", ""))


# The evidence of a finding in several processes is of one of them, and names it.
_OF_ONE = re.compile(r"rank \d+ main: .*?\.(?= |$)")


def plain(page: str) -> str:
    """Return the text of a page, with its elements separated."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page.replace("<wbr>", ""), flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", " ", page)).replace("\u00a0", " ")
    return re.sub(r"\s+", " ", text)


def part(page: str, begin: str, end: str) -> str:
    return page.partition(begin)[2].partition(end)[0]


def renderings(
    case: Case, finding: Finding, call: Callable[..., str], ask: Callable[[str], Any]
) -> dict[str, str]:
    """Return each text about the leading finding, by where it is shown."""
    run = case.header.id
    page, listed, markdown = ask(f"/runs/{run}"), ask("/"), ask(f"/runs/{run}/report.md")
    verdict = examine(case.history)
    examined = ExaminedRun(run, "p", run, verdict, 1e9)
    facts = incident_facts(CONFIRMED, "i1", finding, examined)
    slack = FORMATS["slack"](Message(CONFIRMED, 1e9, facts, "http://localhost")).decode()
    growth = plain(part(page, "<dt>GROWTH</dt>", "</dd>"))
    recording = Recording(case.header, case.history, tuple(b.process for b in case.batches), (), {})
    return {
        "list": plain(part(listed, f'href="/runs/{run}"', "</tr>")),
        "sentence of the page": plain(part(page, 'id="verdict-sentence"', "</h2>")),
        "growth of the verdict": growth,
        "finding of the page": plain(part(page, '<article class="finding"', "</article>")),
        "Markdown": markdown.partition("### 2.")[0].replace("`", "").replace("\\", ""),
        "leakline verdict": call("verdict", run).partition("\n2. ")[0],
        "leakline top": call("top", run, "--once").partition("\nmemory ")[0],
        "report": render(build(recording)).partition("VERDICT")[2].partition("\n2. ")[0],
        "Slack": slack.replace("\\n", " ").replace("*", " "),
    }  # fmt: skip


# Places that describe only the finding, so that no other size may occur there.
_ALONE = ("list", "sentence of the page", "growth of the verdict")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_place_shows_the_same_numbers_of_a_finding(
    serve: StartServer, eventually: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()

    def ask(path: str) -> Any:
        status, answer = server.request("GET", path)
        assert status == 200, answer
        return answer

    def call(*arguments: str) -> str:
        capsys.readouterr()
        main([*arguments, "--server", server.url])
        return capsys.readouterr().out

    for case in CASES:
        assert server.request("POST", "/api/v1/runs", header_to_wire(case.header))[0] == 201
        for batch in case.batches:
            path = f"/api/v1/runs/{case.header.id}/batches"
            assert server.request("POST", path, batch_to_wire(batch))[0] == 200
    differing = []
    for case in CASES:
        verdict = examine(case.history)
        first, unit = verdict.findings[0], verdict.unit
        rate = first.growth_bytes_per_generation.estimate

        def is_told(run: str = case.header.id, rate: float = rate) -> bool:
            told = ask(f"/api/v1/runs/{run}/verdict").get("findings") or [{}]
            return told[0].get("growth_bytes_per_generation", {}).get("estimate") == rate

        eventually(is_told, 60)
        suspect = first.suspects[0] if first.suspects else Suspect("", "type")
        name, count = suspect.name.split(".")[-1], suspect.count_per_generation
        assert first.status in ("suspected", "confirmed"), case.header.id
        assert suspect.bytes_per_generation in (None, pytest.approx(rate, abs=0.1))
        for where, told in renderings(case, first, call, ask).items():
            text = _OF_ONE.sub("", re.sub(r"\s+", " ", told))
            sizes = [abs(size - rate) <= off for size, off in sizes_in(text, unit)]
            counts = [
                abs(found - (count or 0)) <= off for found, off in counts_in(text, name, unit)
            ]
            is_right = all(sizes) if where in _ALONE else any(sizes)
            needs_count = count is not None and where != "growth of the verdict"
            if not sizes or not is_right or not all(counts) or (needs_count and not counts):
                differing.append(
                    f"{case.header.id}, {where}: {rate / MIB:.4f} MiB, {count}: {text[:600]}"
                )
        rows = {
            row["name"].split(".")[-1]: row
            for row in ask(f"/api/v1/runs/{case.header.id}/types")["items"]
        }
        row = rows.get(name)
        if row is not None and first.kind != "graph":
            assert row["count_per_generation"]["estimate"] == pytest.approx(count, abs=0.001)
            assert row["bytes_per_generation"] == suspect.bytes_per_generation
    assert not differing, "\n".join(differing)
