"""Formats a verdict and a run as documents, and a run as a short text for an issue.

The server and the commands pass data in the API's formats, so both produce the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..analysis.assertions.declared_limits import assertion_lines
from ..analysis.findings.verdict_summary import check_lines, course_lines, effect_lines
from ..analysis.status import GROWING
from ..text_format import (
    format_bytes,
    format_change,
    format_count,
    format_count_change,
    format_rate,
    format_share,
)
from .document_blocks import (
    MARKDOWN,
    TERMINAL,
    Block,
    Bullets,
    Facts,
    Heading,
    Headline,
    Sentence,
    Style,
    Table,
    markdown_text,
    section,
    terminal_lines,
)
from .verdict_facts import (
    finding_facts,
    forecast,
    graph_rates,
    interval,
    is_forecast_known,
    leading_finding,
    next_to_finding,
    of_process,
    rating_words,
    role_words,
    seen,
    with_graphs,
)

Json = Mapping[str, Any]

FINDINGS_SHOWN: Final = 20
TYPES_SHOWN: Final = 12
PHASES_SHOWN: Final = 40
# Roles of suspects that name a place in the program.
_PLACES: Final = ("allocation_site", "holder", "container")
# Packages whose versions belong in an issue, if they are installed.
PACKAGES: Final = ("leakline", "torch", "jax", "tensorflow", "numpy")


@dataclass(frozen=True, slots=True)
class Origin:
    """Time, version and server of a document.

    ``made_at`` is a time formatted for people. ``link`` is the URL of the page, or empty without a server.
    """

    made_at: str
    version: str
    server: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a run's document shows. ``snapshot`` is the label of the newest snapshot."""

    project: str
    name: str
    id: str
    state: str
    progress: str
    started: str
    verdict: Json | None
    phase_accounts: Json
    types: Sequence[Json]
    environment: Json
    origin: Origin
    snapshot: str = ""
    unit: str = "generation"


def verdict_lines(verdict: Json, *, banners: bool = False) -> Iterator[str]:
    """Yield a verdict as lines for a terminal."""
    growth, unit = verdict["growth_bytes_per_generation"], verdict["unit"]
    lines = []
    if growth is not None:
        rate = f"{interval(growth)} per {unit}{next_to_finding(verdict)}"
        lines.append(f"after {seen(verdict)}: {rate}")
    if is_forecast_known(verdict["oom"]):
        lines.append(f"forecast: {forecast(verdict['oom'], unit)}")
    blocks = [_headline(verdict), Bullets(lines), *_findings(verdict, unit, TERMINAL)]
    return terminal_lines([*blocks, *_checked(verdict, unit)], banners=banners)


def run_markdown(run: RunReport) -> str:
    style, unit = MARKDOWN, MARKDOWN.text(run.unit)
    return markdown_text(
        [
            Heading(1, f"{style.text(run.project)} / {style.text(run.name)}"),
            _headline(run.verdict),
            Table(("", ""), list(_tiles(run.verdict, unit))),
            *_findings(run.verdict or {}, unit, style),
            *_phase_accounts(run.phase_accounts, unit, style),
            *_types(run.types, unit, graph_rates(run.verdict), style),
            *_checked(run.verdict or {}, run.unit),
            *section("The run", Table(("", ""), _run_rows(run))),
            made(run.origin),
        ]
    )


def issue_text(run: RunReport) -> str:
    """Return the run in at most a dozen lines of Markdown, readable as plain text."""
    facts = list(_issue_facts(run, MARKDOWN.text(run.unit)))
    return markdown_text([_headline(run.verdict), Facts(facts)])


def made(origin: Origin) -> Sentence:
    """Return a line with the time, version and server of a document, and a link to the current page."""
    where = f" from {origin.server}" if origin.server else ""
    live = f"; the current page: {origin.link}" if origin.link else ""
    return Sentence(f"Made {origin.made_at} by Leakline {origin.version}{where}{live}")


def checked(answer: Json, unit: str) -> Iterator[Block]:
    """Yield the sections on fixes and expectations, for a verdict or a comparison."""
    # Use ``get``, because a response from an older server lacks some of these fields.
    effects, assertions = answer.get("effects") or (), answer.get("assertions") or ()
    yield from _listed("What each fix has done", effect_lines(effects))
    yield from _listed("Expectations", assertion_lines(assertions, unit))


def _checked(verdict: Json, unit: str) -> Iterator[Block]:
    yield from checked(verdict, unit)
    yield from _listed("Checklist", check_lines(verdict.get("checklist") or ()))
    yield from _listed("Course", course_lines(verdict, unit))


def _listed(title: str, lines: Iterable[str]) -> Iterator[Block]:
    return section(title, Bullets(list(lines)))


def _headline(verdict: Json | None) -> Headline:
    if verdict is None:
        return Headline("learning", "The run has not been examined yet.")
    return Headline(verdict["status"], verdict["summary"])


def _tiles(verdict: Json | None, unit: str) -> Iterator[tuple[str, str]]:
    """Yield pairs (title, text), with the titles "where", "what", "how much", "when" and "forecast"."""
    if verdict is None:
        return
    finding = leading_finding(verdict)
    if finding is not None:
        yield "where", _where(finding)
        facts = [fact for fact in finding_facts(finding, unit, MARKDOWN.name) if fact[0] != "where"]
        yield from facts
        if "when" not in dict(facts):
            yield "when", "from the first reading on"
    elif verdict["growth_bytes_per_generation"] is not None:
        yield "how much", f"{interval(verdict['growth_bytes_per_generation'])} per {unit}"
    yield "forecast", forecast(verdict["oom"], unit)


def _where(finding: Json) -> str:
    phase, share = finding.get("phase_path") or finding["phase"], finding["phase_share"]
    process = of_process(finding.get("process"), MARKDOWN.name)
    if not phase:
        return f"no single phase{process}"
    whole = f", {format_share(share)} of the growth" if share is not None else ""
    return f"{MARKDOWN.name(phase)}{whole}{process}"


def _findings(verdict: Json, unit: str, style: Style) -> Iterator[Block]:
    found: Sequence[Json] = verdict.get("findings", ())
    blocks: list[Block] = [_breakdown(found, unit, style)]
    for number, finding in enumerate(found[:FINDINGS_SHOWN], 1):
        kind = finding["kind"].replace("_", " ")
        blocks.append(Heading(3, f"{number}. {finding['status'].capitalize()}: {kind}"))
        blocks.append(Facts(list(_finding(finding, unit, style))))
    if len(found) > FINDINGS_SHOWN:
        blocks.append(Sentence(f"Findings not shown here: {len(found) - FINDINGS_SHOWN}."))
    ruled_out = verdict.get("ruled_out", ())
    blocks.append(Bullets([f"ruled out: {each['phase']}, {each['reason']}" for each in ruled_out]))
    return section("Findings", *blocks)


def _breakdown(found: Sequence[Json], unit: str, style: Style) -> Table:
    """Return a table of the findings that are certain or possible leaks, with their sum."""
    growing = [f for f in found if f["status"] in GROWING]
    sizes = [f["growth_bytes_per_generation"]["estimate"] for f in growing]
    rows = [
        (
            f.get("priority", "minor").upper(),
            style.name(f["suspects"][0]["name"]) if f["suspects"] else f["kind"].replace("_", " "),
            style.name(f["phase"] or ""), format_change(size), _location(f, style),
        )
        for f, size in zip(growing, sizes, strict=True)
    ]  # fmt: skip
    if len(rows) > 1:
        rows.append(("sum", "", "", format_change(sum(sizes)), ""))
    return Table(("class", "component", "phase", f"#growth per {unit}", "location"), rows)


def _location(finding: Json, style: Style) -> str:
    """Return the code location that a declared fix states. If no location is known, return the holder or ""."""
    if finding.get("location"):
        return style.link(finding["location"], finding.get("location_link"))
    holders = (s["name"] for s in finding["suspects"][1:] if s["role"] in _PLACES)
    return style.name(next(holders, ""))


def _finding(finding: Json, unit: str, style: Style) -> Iterator[tuple[str, str | Sequence[str]]]:
    yield from finding_facts(finding, unit, style.name)
    if finding.get("location"):
        yield "location", style.link(finding["location"], finding.get("location_link"))
    confidence = format_share(finding["confidence"])
    yield "priority", f"{finding.get('priority', 'minor')}, confidence {confidence}"
    yield "evidence", finding["evidence"]
    yield "advice", finding["advice"]


def _phase_accounts(phase_accounts: Json, unit: str, style: Style) -> Iterator[Block]:
    """Yield a section with the growth of each phase, in the given order."""
    count, whole = (
        sum(phase_accounts["spans"]) or len(phase_accounts["generations"]),
        sum(phase_accounts["total"]),
    )
    if not count:
        return

    def row(name: str, kept: Sequence[float]) -> tuple[str, ...]:
        share = format_share(sum(kept) / whole) if whole > 0 else style.nothing
        mean, in_all = format_change(sum(kept) / count), format_change(sum(kept))
        return name, mean, in_all, share, format_change(kept[-1])

    lines = phase_accounts["lines"][:PHASES_SHOWN]
    rows = [row(style.name(line["name"]), line["bytes"]) for line in lines]
    heads = ("phase", f"#mean per {unit}", "#whole run", "#share", f"#last {unit}")
    yield Heading(2, "Memory by phase")
    yield Sentence(f"Private memory kept by each phase, over {count} {unit}s.")
    yield Table(heads, [*rows, row("sum", phase_accounts["total"])])


def _types(
    types: Sequence[Json], unit: str, graphs: Mapping[str, float], style: Style
) -> Iterator[Block]:
    """Yield a section with the types that grow or were declared. The analysis has already sorted the types by
    growth.
    """
    heads = (
        "type", "#first", "#last", "#change", f"#per {unit}", f"#bytes per {unit}", "held by",
        "rating",
    )  # fmt: skip
    worth = [each for each in types if each["rating"] != "steady"][:TYPES_SHOWN]
    rows = [_type_row(each, graphs, style) for each in worth]
    return section("Objects by type", Table(heads, rows))


def _type_row(each: Json, graphs: Mapping[str, float], style: Style) -> tuple[str, ...]:
    size, rate = each["bytes_per_generation"], each["count_per_generation"]
    count = "" if rate is None else format_count_change(rate["estimate"])
    return (
        style.name(each["name"]), f"{each['first_count']:,}", f"{each['last_count']:,}",
        f"{each['difference']:+,}", with_graphs(count, each["name"], graphs) or style.nothing,
        style.nothing if size is None else format_change(size), style.name(each["holder"] or ""),
        style.text(rating_words(each)),
    )  # fmt: skip


def _run_rows(run: RunReport) -> list[tuple[str, str]]:
    environment, (name, text, _, nothing) = run.environment, MARKDOWN
    command = environment.get("command_line") or ""
    words = command if isinstance(command, (list, tuple)) else [command]
    rows = [
        ("run", name(run.id)), ("state", text(run.state)), ("progress", text(run.progress)),
        ("newest snapshot", name(run.snapshot)), ("started", text(run.started)),
        ("host", name(environment.get("host") or "")), ("versions", versions(environment)),
        ("command line", name(" ".join(map(str, words)))),
    ]  # fmt: skip
    return [row for row in rows if row[1] not in ("", nothing)]


def versions(environment: Json) -> str:
    """Return text such as ``leakline 0.1.0, Python 3.11.9, commit 1f0c9a2 with changes``, or an empty string if nothing
    is known.
    """
    packages = environment.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    parts = [f"{name} {MARKDOWN.text(packages[name])}" for name in PACKAGES if packages.get(name)]
    if environment.get("python"):
        python = f"Python {MARKDOWN.text(environment['python'])}"
        parts.insert(1 if packages.get("leakline") else 0, python)
    if environment.get("commit"):
        changes = " with changes" if environment.get("dirty") else ""
        parts.append(f"commit {MARKDOWN.name(str(environment['commit'])[:12])}{changes}")
    return ", ".join(parts)


def _issue_facts(run: RunReport, unit: str) -> Iterator[tuple[str, str]]:
    name, text, *_ = MARKDOWN
    at = f", newest snapshot {name(run.snapshot)}" if run.snapshot else ""
    title = name(f"{run.project} / {run.name}")
    yield "Run", f"{title}, {text(run.state)}, {text(run.progress)}{at}"
    verdict = run.verdict
    finding = leading_finding(verdict)
    if verdict is not None and finding is not None:
        yield "Where", _where(finding)
        yield "How much", f"{interval(finding['growth_bytes_per_generation'])} per {unit}"
        if finding["suspects"]:
            yield "What", _what(finding, run.types, unit)
        start = finding["started_at_generation"]
        yield "Since", f"{unit} {format_count(start['estimate'])}" if start else "the first reading"
        yield from _others(verdict, finding)
    elif verdict is not None and verdict["growth_bytes_per_generation"] is not None:
        yield "How much", f"{interval(verdict['growth_bytes_per_generation'])} per {unit}"
    if verdict is not None and verdict["oom"]["generation"] is not None:
        yield "Forecast", forecast(verdict["oom"], unit)
    if known := versions(run.environment):
        yield "Versions", known
    if run.origin.link:
        yield "Page", run.origin.link
    else:
        yield "Run id", name(run.id)


def _what(finding: Json, types: Sequence[Json], unit: str) -> str:
    """Return text such as ``trading.Environment 2 → 98, 16 more per generation, held by trainer.history[*]``."""
    first, *others = finding["suspects"]
    counted = next((each for each in types if each["name"] == first["name"]), None)
    parts = [MARKDOWN.name(first["name"])]
    if counted is not None:
        parts[0] += f" {counted['first_count']:,} → {counted['last_count']:,}"
    if first["count_per_generation"] is not None:
        graph = " with a graph" if role_words(finding, 0) != first["role"] else ""
        parts.append(format_rate(first["count_per_generation"], unit, f"more{graph}"))
    if first["bytes_per_generation"]:
        parts.append(f"{format_bytes(first['bytes_per_generation'])} per {unit}")
    named = next((each["name"] for each in others if each["role"] in ("holder", "container")), "")
    holder = named or (counted["holder"] if counted else "")
    if holder:
        parts.append(f"held by {MARKDOWN.name(holder)}")
    return ", ".join(parts)


def _others(verdict: Json, leading: Json) -> Iterator[tuple[str, str]]:
    more = [
        each
        for each in verdict["findings"]
        if each is not leading and each["status"] in ("confirmed", "suspected")
    ]
    if more:
        yield "Also", "; ".join(_short(each) for each in more[:3])


def _short(finding: Json) -> str:
    size = format_change(finding["growth_bytes_per_generation"]["estimate"])
    where = f" in {MARKDOWN.name(finding['phase'])}" if finding["phase"] else ""
    return f"{finding['kind'].replace('_', ' ')}{where}, {size}"
