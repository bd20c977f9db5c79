"""A page that shows every macro and class of the pages once; only tests serve it, at ``/patterns``.

The examples are made-up numbers and say so; colours and statuses are those of the pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jinja2

from leakline_server.charts.chart_parts import Band, Chart, Group, Level, Line
from leakline_server.paths import TEMPLATES
from leakline_server.web.auth.authenticator import calling
from leakline_server.web.rendering import number_formats, table_cells
from leakline_server.web.rendering.evidence_sections import SIGNS
from leakline_server.web.rendering.page_contexts import (
    Cell,
    Choice,
    CountForm,
    Figure,
    FindingView,
    SaidView,
    Section,
    Sign,
    SuspectView,
    Table,
    Tick,
    Tile,
)
from leakline_server.web.rendering.table_cells import sparkline
from leakline_server.web.rendering.templating import HEADERS, VIEWER, environment, written
from leakline_server.web.run_page.verdict_view import (
    OUTCOMES,
    STATUSES,
    mutings_of,
    outcome_of,
    status_of,
)

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Route

PATH: Final = "/patterns"
FOLDER: Final = Path(__file__).parent
MIB: Final = 2**20
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Pair:
    """A word or a variable of css/variables.css, and its use."""

    name: str
    use: str


def add_patterns(context: BrowserContext, address: str) -> None:
    """Answer requests of ``context`` for the patterns page instead of the server at ``address``."""

    def answer_page(route: Route) -> None:
        route.fulfill(body=html(), content_type="text/html; charset=utf-8", headers=HEADERS)

    def answer_file(route: Route) -> None:
        route.fulfill(path=FOLDER / route.request.url.rpartition("/")[2])

    context.route(address + PATH, answer_page)
    context.route(f"{address}{PATH}/*", answer_file)


def html() -> str:
    """Return the page, rendered with the product's template environment."""
    pages = environment().overlay(loader=jinja2.FileSystemLoader([FOLDER, TEMPLATES]))
    moment = number_formats.moment(_MOMENT)
    values = {
        "title": "Patterns of the pages",
        "colours": [Pair(name, use) for name, use in COLOURS.items()],
        "statuses": [status_of(name) for name in STATUSES],
        "outcomes": [outcome_of(name) for name in OUTCOMES],
        "numbers": _numbers(),
        "cells": _cells(),
        "live": [Pair(name, use) for name, use in LIVE.items()],
        "priorities": [Pair(name, use) for name, use in PRIORITIES.items()],
        "signs": [Sign(kind, word) for kind, word in SIGNS.items()],
        "states": [Pair(name, use) for name, use in STATES.items()],
        "tiles": _tiles(),
        "ticks": _ticks(),
        "finding": _finding(),
        "count": _count(),
        "figure": _figure(),
        "empty": _empty(),
        "moment": moment,
        "clock": number_formats.clock(moment),
        VIEWER: calling.get(),
    }
    return written(pages.get_template("patterns.html"), values)


def _numbers() -> Table:
    growth = {"estimate": 7.1 * GIB, "low": 6.9 * GIB, "high": 7.3 * GIB}
    rows = (
        (
            "a size",
            number_formats.size(7.1 * GIB),
            "binary, two decimals, and the unit; below one KiB whole bytes",
        ),
        ("a change", number_formats.change(1.2 * GIB), "with its sign, also the plus"),
        ("a size below zero", number_formats.change(-3.2 * MIB), "a true minus, not a hyphen"),
        (
            "an estimate",
            number_formats.interval(growth),
            "the ends of its interval, where they say something",
        ),
        ("a count", number_formats.count(3072), "thousands apart"),
        ("a rate", number_formats.rate(0.2), "per generation, with its sign"),
        ("a share", number_formats.percent(0.97), "whole percent; never of a whole that is zero"),
        ("a time that passed", number_formats.seconds(7260), "two units at most"),
        ("a short one", number_formats.seconds(0.0034), "milliseconds"),
        ("what nobody measured", number_formats.NOT_MEASURED, "never a zero, never an empty field"),
    )
    return table_cells.table(("what", "#reads", "rule"), rows, tall=False)


def _cells() -> Table:
    rows = (
        ("text", "evaluate_population", "left, in the first column the name of the row"),
        (
            "a name from a training",
            table_cells.code("trading.TradingEnvironment"),
            "as code; long ones break after a dot",
        ),
        ("a rating", table_cells.rated("grows", "watch"), "colour, shape and word of a status"),
        (
            "a time",
            table_cells.at(_MOMENT),
            "in the zone of the viewer, with the day where it is not today",
        ),
        (
            "a history",
            Cell(
                "",
                sparkline=sparkline([4, 4, 5, 6, 7, 9, 10, 12], "Instances", number_formats.count),
            ),
            "a small line next to the name, with a text for screen readers",
        ),
        ("a link", Cell("before-fix", href="/patterns#tables"), "where more is to be seen"),
        ("absent", number_formats.NOT_MEASURED, "faint and slanted, in words"),
    )
    sums = ("sum", "", "a last row of its own, set apart by a line")
    caption = "What a table may hold; numbers stand to the right"
    return table_cells.table(
        ("field", "looks", "rule"), rows, caption=caption, tall=False, sums=sums
    )


def _tiles() -> tuple[Tile, ...]:
    return (
        Tile("WHERE", "evaluate_population", "97 % of the growth", "#tiles"),
        Tile(
            "WHAT", "trading.TradingEnvironment", "held by erl_trainer.Trainer.population", "#tiles"
        ),
        Tile("HOW MUCH", number_formats.change(7.1 * GIB), "per generation", "#tiles", "confirmed"),
    )


def _ticks() -> tuple[Tick, ...]:
    return (
        Tick("Does memory stay level?", "yes", "ok", "ok", "Within 2 MiB over 12 generations."),
        Tick(
            "Is the peak low enough?",
            "no",
            "confirmed",
            "confirmed",
            "9.70 GiB of a limit of 10.00 GiB.",
        ),
        Tick(
            "Does it end by itself?",
            "not yet",
            "learning",
            "learning",
            "12 of 25 generations so far.",
        ),
        Tick("Is the GPU steady?", "not measured", "learning", "absent", "There was no GPU."),
    )


def _finding() -> FindingView:
    return FindingView(
        status=status_of("confirmed"),
        title="trading.TradingEnvironment piles up in evaluate_population",
        kind="objects",
        priority="critical",
        suspects=(
            SuspectView("trading.TradingEnvironment", "type", "+16 per generation"),
            SuspectView("erl_trainer.Trainer.population_history[*]", "holder", ""),
        ),
        facts=("+7.10 GiB per generation (6.90 GiB to 7.30 GiB)", "since generation 2", "confidence 97 %"),
        evidence=("The count rises by 16 in each of 12 generations.",),
        advice=("Keep the scores of old populations, not the populations.",),
        search="",
        location=Cell("training/trainer.py:281", code=True, href="#findings"),
        said=(
            SaidView(
                "closed", "Closed", "Reopen", "fixed, see https://forge.example/erl/pulls/7",
                number_formats.moment(_MOMENT), number_formats.clock(number_formats.moment(_MOMENT)), None, "",
            ),
        ),
        muting=mutings_of("erl", ["f1"], "/runs/1")["f1"],
    )  # fmt: skip


def _count() -> CountForm:
    text = "was 2 at every reading of the last 8 generations"
    fields = (("type", "trading.TradingEnvironment"), ("count", "2"))
    return CountForm(fields[0][1], text, "#forms", fields, "Expect 2", f"Expect 2 {fields[0][1]}")


def _empty() -> Section:
    how = "Says what would be here, and what it needs."
    return Section("empty", "A section without anything", how, empty="Nothing was counted yet.")


def _figure() -> Section:
    how = (
        "One sentence says how to read it, a switch chooses between groups of lines, the buttons take picture and "
        "numbers away, and a table holds the same numbers. Lines differ in colour, dash and symbol. These are made up."
    )
    private, resident = _lines("private", 4 * GIB), _lines("rss", 4.4 * GIB)
    chart = Chart(
        "example",
        "bytes",
        "memory",
        "generation",
        private + resident,
        bands=(Band(2, 11, "leaks"),),
        levels=(Level(6 * GIB, "limit 6.00 GiB"),),
        groups=(Group("private", "Private"), Group("rss", "RSS")),
    )
    choices = tuple(Choice(each.id, each.label, each.id == "private") for each in chart.groups)
    description = "Made-up memory after three phases of twelve generations: one line climbs."
    figure = Figure(chart, description, choices, low=True)
    rows = [
        (f"{each:,}", *(number_formats.size(line.y[each]) for line in private))
        for each in reversed(range(_GENERATIONS))
    ]
    shown = table_cells.table(("#generation", *(f"#{line.name}" for line in private)), rows)
    note = "A measured sentence stands below the chart."
    return Section("figure", "A chart", how, figure, shown, True, note)


def _lines(group: str, begins: float) -> tuple[Line, ...]:
    generations = [float(each) for each in range(_GENERATIONS)]
    phases = (("evaluate", 0.1 * GIB), ("train", 0.04 * GIB), ("evolve", 0.0))
    return tuple(
        Line(
            f"after {phase}",
            generations,
            [begins + grows * each for each in generations],
            colour=number,
            dash=number - 1,
            symbol=number - 1,
            group=group,
        )
        for number, (phase, grows) in enumerate(phases, start=1)
    )


_GENERATIONS: Final = 12
# 2026-01-31 12:10 UTC
_MOMENT: Final = 1_769_861_400.0
COLOURS: Final = {
    "--page": "behind everything",
    "--surface": "panels, fields and buttons",
    "--sunken": "code, keys, what is pressed or chosen",
    "--line": "around panels and between rows",
    "--line-strong": "around fields, below heads, axes",
    "--ink": "text",
    "--ink-soft": "sentences next to a fact, labels of charts",
    "--ink-faint": "heads of tables, what is absent",
    "--accent": "links, focus, the one main action",
    "--accent-soft": "rows that are picked",
    "--on-accent": "text on the accent",
    "--shadow": "below panels",
    "--confirmed": "leaking, broken, wrong",
    "--confirmed-soft": "behind it",
    "--suspected": "suspected, forecasts",
    "--suspected-soft": "behind it",
    "--watch": "worth a look",
    "--watch-soft": "behind it",
    "--filling": "filling to a known end",
    "--filling-soft": "behind it",
    "--ok": "in order",
    "--ok-soft": "behind it",
    "--recovered": "was wrong and is in order",
    "--recovered-soft": "behind it",
    "--learning": "not known yet",
    "--learning-soft": "behind it",
    "--series-0": "what belongs to no phase",
    "--series-1": "first line of a chart",
    "--series-2": "second line",
    "--series-3": "third line",
    "--series-4": "fourth line",
    "--series-5": "fifth line",
    "--series-6": "sixth line",
    "--series-7": "seventh line",
    "--series-8": "eighth line",
    "--grid": "lines behind a chart",
}
LIVE: Final = {
    "live": "changes are shown immediately",
    "closed": "not connected: the page is hidden, or not connected yet",
    "paused": "the viewer stopped it",
    "disconnected": "the server does not answer; the page tries again",
    "late": "the run has missed two heartbeats: no data for 22 seconds or more",
    "silent": "no data for a minute; the run may continue",
    "killed": "the run was killed, as reported or inferred",
    "terminated": "the run ended on a signal",
    "interrupted": "somebody ended the run with Ctrl-C",
    "failed": "the run ended by an error",
    "ended": "the run is over",
}
PRIORITIES: Final = {
    "critical": "memory runs out before the planned end",
    "major": "takes much of the limit",
    "minor": "fits below the limit",
}
STATES: Final = {
    "running": "sends data",
    "silent": "has sent nothing for a minute",
    "finished": "ended normally",
    "failed": "ended by an error",
    "interrupted": "was ended with Ctrl-C",
    "killed": "was ended from outside",
}
