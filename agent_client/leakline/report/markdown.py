"""One run as Markdown, whole, or as the few lines that people paste into an issue.

The server and `leakline report --markdown` give what they know in the shapes of the API, and get the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..analysis.ladder import GROWING
from ..analysis.summary import check_lines, course_lines, effect_lines, plan_lines, promise_lines
from ..markup import NOTHING, bullets, code, escape, headline, linked, table
from ..text_format import (
    format_bytes,
    format_change,
    format_count,
    format_count_change,
    format_rate,
    format_share,
)
from .facts import (
    finding_facts,
    forecast,
    graph_rates,
    interval,
    leading_finding,
    of_process,
    rating_words,
    with_graphs,
)

Json = Mapping[str, Any]

FINDINGS_SHOWN: Final = 20
TYPES_SHOWN: Final = 12
BOOK_LINES_SHOWN: Final = 40
# Suspects that are a place in the program.
_PLACES: Final = ("allocation_site", "holder", "container")
# Packages whose versions belong into an issue, where they are installed.
PACKAGES: Final = ("leakline", "torch", "jax", "tensorflow", "numpy")


@dataclass(frozen=True, slots=True)
class Origin:
    """``made_at`` as people read it; ``link`` leads to the page, and is empty for what no server has."""

    made_at: str
    version: str
    server: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class RunTold:
    """Everything the text of a run is made of. ``snapshot`` is the label of the newest."""

    project: str
    name: str
    id: str
    state: str
    progress: str
    started: str
    verdict: Json | None
    books: Json
    types: Sequence[Json]
    environment: Json
    origin: Origin
    snapshot: str = ""
    unit: str = "generation"


def run_markdown(told: RunTold) -> str:
    """Ends with a line end."""
    unit = escape(told.unit)
    parts = [
        [f"# {escape(told.project)} / {escape(told.name)}", "", _headline(told.verdict), ""],
        table(("", ""), _tiles(told, unit)),
        _findings(told.verdict, unit),
        _books(told.books, unit),
        _types(told.types, unit, graph_rates(told.verdict)),
        _checked(told.verdict or {}, told.unit),
        _run(told),
        [made(told.origin)],
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def issue_text(told: RunTold) -> str:
    """A dozen lines at most, which read as plain text as well."""
    unit = escape(told.unit)
    lines = [_headline(told.verdict), ""]
    lines += [f"- {title}: {fact}" for title, fact in _issue_facts(told, unit)]
    return "\n".join(lines) + "\n"


def made(origin: Origin) -> str:
    """When, by which version, and from where."""
    where = f" from {origin.server}" if origin.server else ""
    live = f"; the page as it is now: {origin.link}" if origin.link else ""
    return f"Made {origin.made_at} by Leakline {origin.version}{where}{live}"


def _headline(verdict: Json | None) -> str:
    if verdict is None:
        return "**Learning.** The run has not been examined yet."
    return headline(verdict["status"].capitalize(), verdict["summary"])


def _tiles(told: RunTold, unit: str) -> Iterator[tuple[str, str]]:
    """Where, what, how much, when and when memory runs out."""
    verdict = told.verdict
    if verdict is None:
        return
    finding = leading_finding(verdict)
    if finding is not None:
        yield "where", _where(finding)
        facts = [fact for fact in finding_facts(finding, unit, code) if fact[0] != "where"]
        yield from facts
        if "when" not in dict(facts):
            yield "when", "from the first reading on"
    elif verdict["growth_bytes_per_generation"] is not None:
        yield "how much", f"{interval(verdict['growth_bytes_per_generation'])} per {unit}"
    yield "forecast", forecast(verdict["oom"], unit)


def _where(finding: Json) -> str:
    phase, share = finding.get("phase_path") or finding["phase"], finding["phase_share"]
    if not phase:
        return "no single phase" + of_process(finding.get("process"), code)
    whole = f", {format_share(share)} of the growth" if share is not None else ""
    return code(phase) + whole + of_process(finding.get("process"), code)


def _findings(verdict: Json | None, unit: str) -> Iterator[str]:
    found: Sequence[Json] = (verdict or {}).get("findings", ())
    ruled_out: Sequence[Json] = (verdict or {}).get("ruled_out", ())
    if not (found or ruled_out):
        return
    yield from ("## Findings", "")
    yield from _breakdown(verdict or {}, unit)
    for number, finding in enumerate(found[:FINDINGS_SHOWN], 1):
        yield from _finding(number, finding, unit)
    if len(found) > FINDINGS_SHOWN:
        yield from (f"{len(found) - FINDINGS_SHOWN} more are left out here.", "")
    yield from bullets(f"ruled out: {each['phase']}, {each['reason']}" for each in ruled_out)


def _breakdown(verdict: Json, unit: str) -> Iterator[str]:
    """What leaks or may, a line each in the order of its size, and their sum."""
    growing = [f for f in verdict["findings"] if f["status"] in GROWING]
    sizes = [f["growth_bytes_per_generation"]["estimate"] for f in growing]
    rows = [
        (
            f.get("priority", "minor").upper(),
            code(f["suspects"][0]["name"]) if f["suspects"] else f["kind"].replace("_", " "),
            code(f["phase"] or ""), format_change(size), _location(f),
        )
        for f, size in zip(growing, sizes, strict=True)
    ]  # fmt: skip
    if len(rows) > 1:
        rows.append(("sum", "", "", format_change(sum(sizes)), ""))
    yield from table(("class", "component", "phase", f"#growth per {unit}", "location"), rows)


def _location(finding: Json) -> str:
    """Where a fix of this phase says that it is in the code, else who holds it; neither may be known."""
    if finding.get("location"):
        return linked(finding["location"], finding.get("location_link"))
    held = (s["name"] for s in finding["suspects"][1:] if s["role"] in _PLACES)
    return code(next(held, ""))


def _finding(number: int, finding: Json, unit: str) -> Iterator[str]:
    kind = finding["kind"].replace("_", " ")
    yield from (f"### {number}. {finding['status'].capitalize()}: {kind}", "")
    yield from (f"- {title}: {fact}" for title, fact in finding_facts(finding, unit, code))
    if finding.get("location"):
        yield f"- location: {linked(finding['location'], finding.get('location_link'))}"
    yield f"- priority: {finding.get('priority', 'minor')}, confidence {format_share(finding['confidence'])}"
    for title, key in (("evidence", "evidence"), ("what to do", "advice")):
        if finding[key]:
            yield f"- {title}:"
            yield from (f"  - {escape(sentence)}" for sentence in finding[key])
    yield ""


def _books(books: Json, unit: str) -> Iterator[str]:
    """Growth booked to phases, in the order given."""
    count, whole = sum(books["spans"]) or len(books["generations"]), sum(books["total"])
    if not count:
        return
    yield from ("## The books", "", f"Private memory kept by each phase, over {count} {unit}s.", "")
    rows = [
        _book_row(code(line["name"]), line["bytes"], whole, count)
        for line in books["lines"][:BOOK_LINES_SHOWN]
    ]
    rows.append(_book_row("sum", books["total"], whole, count))
    yield from table(("phase", f"#mean per {unit}", "#whole run", "#share", f"#last {unit}"), rows)


def _book_row(name: str, kept: Sequence[float], whole: float, count: int) -> tuple[str, ...]:
    share = format_share(sum(kept) / whole) if whole > 0 else NOTHING
    mean = format_change(sum(kept) / count)
    return name, mean, format_change(sum(kept)), share, format_change(kept[-1])


def _types(types: Sequence[Json], unit: str, graphs: Mapping[str, float]) -> Iterator[str]:
    """Those that grow or were declared; the analysis has put those that grow first."""
    worth = [each for each in types if each["rating"] != "steady"][:TYPES_SHOWN]
    if not worth:
        return
    yield from ("## Objects by type", "")
    heads = (
        "type",
        "#first",
        "#last",
        "#change",
        f"#per {unit}",
        f"#bytes per {unit}",
        "held by",
        "rating",
    )
    yield from table(heads, (_type_row(each, graphs) for each in worth))


def _type_row(each: Json, graphs: Mapping[str, float]) -> tuple[str, ...]:
    size = each["bytes_per_generation"]
    return (
        code(each["name"]), f"{each['first_count']:,}", f"{each['last_count']:,}",
        f"{each['difference']:+,}", with_graphs(_rate(each), each["name"], graphs) or NOTHING,
        NOTHING if size is None else format_change(size), code(each["holder"] or ""),
        escape(rating_words(each)),
    )  # fmt: skip


def _rate(each: Json) -> str:
    """``+16``; empty where too little was counted."""
    rate = each["count_per_generation"]
    if rate is None:
        return ""
    return format_count_change(rate["estimate"])


def _checked(verdict: Json, unit: str) -> Iterator[str]:
    """The plan, what fixes promised, the checklist and the course. A verdict of an older server lacks some."""
    for title, lines in (
        ("What each fix has done", effect_lines(verdict.get("effects") or ())),
        ("What the fix promised", promise_lines(verdict.get("fixes") or ())),
        ("Plan and budgets",
         plan_lines(verdict.get("bands") or (), verdict.get("budgets") or (), unit)),
        ("Checklist", check_lines(verdict.get("checklist") or ())),
        ("Course", course_lines(verdict, unit)),
    ):  # fmt: skip
        yield from titled(title, bullets(lines))


def titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A heading above ``lines``, where there are any."""
    body = list(lines)
    if body:
        yield from (f"## {title}", "", *body)


def _run(told: RunTold) -> Iterator[str]:
    environment = told.environment
    facts = [
        ("run", code(told.id)), ("state", escape(told.state)), ("progress", escape(told.progress)),
        ("newest snapshot", code(told.snapshot)), ("started", escape(told.started)),
        ("host", code(environment.get("host") or "")), ("versions", versions(environment)),
        ("command line", code(_words(environment.get("command_line")))),
    ]  # fmt: skip
    yield from ("## The run", "")
    yield from table(("", ""), [fact for fact in facts if fact[1] not in ("", NOTHING)])


def _words(arguments: Any) -> str:
    if isinstance(arguments, (list, tuple)):
        return " ".join(map(str, arguments))
    return str(arguments or "")


def versions(environment: Json) -> str:
    """``leakline 0.1.0, Python 3.11.9, torch 2.13.0, commit 1f0c9a2 with changes``; empty where nothing is known."""
    packages = environment.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    told = [f"{name} {escape(packages[name])}" for name in PACKAGES if packages.get(name)]
    if environment.get("python"):
        told.insert(1 if packages.get("leakline") else 0, f"Python {escape(environment['python'])}")
    if environment.get("commit"):
        changes = " with changes" if environment.get("dirty") else ""
        told.append(f"commit {code(str(environment['commit'])[:12])}{changes}")
    return ", ".join(told)


def _issue_facts(told: RunTold, unit: str) -> Iterator[tuple[str, str]]:
    at = f", newest snapshot {code(told.snapshot)}" if told.snapshot else ""
    name = code(f"{told.project} / {told.name}")
    yield "Run", f"{name}, {escape(told.state)}, {escape(told.progress)}{at}"
    verdict = told.verdict
    finding = leading_finding(verdict)
    if verdict is not None and finding is not None:
        yield "Where", _where(finding)
        yield "How much", f"{interval(finding['growth_bytes_per_generation'])} per {unit}"
        if finding["suspects"]:
            yield "What", _what(finding, told.types, unit)
        start = finding["started_at_generation"]
        yield "Since", f"{unit} {format_count(start['estimate'])}" if start else "the first reading"
        yield from _others(verdict, finding)
    elif verdict is not None and verdict["growth_bytes_per_generation"] is not None:
        yield "How much", f"{interval(verdict['growth_bytes_per_generation'])} per {unit}"
    if verdict is not None and verdict["oom"]["generation"] is not None:
        yield "Forecast", forecast(verdict["oom"], unit)
    if known := versions(told.environment):
        yield "Versions", known
    if told.origin.link:
        yield "Page", told.origin.link
    else:
        yield "Run id", code(told.id)


def _what(finding: Json, types: Sequence[Json], unit: str) -> str:
    """``trading.Environment`` 2 → 98, +16 per generation, held by ``trainer.history[*]``"""
    first, *others = finding["suspects"]
    counted = next((each for each in types if each["name"] == first["name"]), None)
    parts = [code(first["name"])]
    if counted is not None:
        parts[0] += f" {counted['first_count']:,} → {counted['last_count']:,}"
    if first["count_per_generation"] is not None:
        graph = " with a graph" if finding["kind"] == "graph" else ""
        parts.append(format_rate(first["count_per_generation"], unit, f"more{graph}"))
    if first["bytes_per_generation"]:
        parts.append(f"{format_bytes(first['bytes_per_generation'])} per {unit}")
    named = next((each["name"] for each in others if each["role"] in ("holder", "container")), "")
    holder = named or (counted["holder"] if counted else "")
    if holder:
        parts.append(f"held by {code(holder)}")
    return ", ".join(parts)


def _others(verdict: Json, told: Json) -> Iterator[tuple[str, str]]:
    more = [
        each
        for each in verdict["findings"]
        if each is not told and each["status"] in ("confirmed", "suspected")
    ]
    if more:
        yield "Also", "; ".join(_short(each) for each in more[:3])


def _short(finding: Json) -> str:
    size = format_change(finding["growth_bytes_per_generation"]["estimate"])
    where = f" in {code(finding['phase'])}" if finding["phase"] else ""
    return f"{finding['kind'].replace('_', ' ')}{where}, {size}"
