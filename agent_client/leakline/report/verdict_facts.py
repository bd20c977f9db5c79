"""Extracts short facts from a verdict or a comparison, for the commands and the Markdown reports.

The input is in the API's formats. ``write`` formats a name: unchanged for a terminal, or escaped for Markdown
(`document_blocks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..analysis.generation_axis import UNITS_OF_TIME
from ..analysis.status import GROWING
from ..snapshot import GRAPH_NODE
from ..text_format import (
    NOT_MEASURED,
    count_of,
    format_bytes,
    format_change,
    format_count,
    format_interval,
    format_number,
    format_percent_change,
    format_range,
    format_rate,
    in_brackets,
    join_processes,
    seen_of,
)

Json = Mapping[str, Any]
Write = Callable[[str], str]

# Maps each kind of finding about memory outside the process's private memory to the name of that memory.
NOT_PRIVATE: Final[Mapping[str, str]] = {
    "children": "Child processes",
    "shared_memory": "Shared memory",
    "external": "Memory outside the process",
    "gpu": "GPU memory",
    "gpu_fragmentation": "Reserved GPU memory",
}
# Maps each line of the phase accounts that is not a phase to the name to show.
OUTSIDE_NAMES: Final[Mapping[str, str]] = {
    "between": "outside phases",
    "other_threads": "other threads",
}
_ACTIVE: Final[tuple[tuple[str, ...], ...]] = (
    ("confirmed", "suspected"),
    ("watch", "filling", "recovered"),
)


def leading_finding(verdict: Json | None) -> Json | None:
    """Return the first confirmed or suspected finding, else the first watch, filling or recovered finding, or None."""
    findings: Sequence[Json] = (verdict or {}).get("findings", ())
    for statuses in _ACTIVE:
        for finding in findings:
            if finding["status"] in statuses:
                return finding
    return None


def finding_facts(finding: Json, unit: str, write: Write = str) -> Iterator[tuple[str, str]]:
    """Yield pairs (title, fact): "where", "what" for each suspect, "how much", and "when" if the start is known."""
    phase = write(finding["phase"]) if finding["phase"] else "no single phase"
    yield "where", phase + of_process(finding.get("process"), write)
    for place, suspect in enumerate(finding["suspects"]):
        role = role_words(finding, place)
        yield "what", f"{write(suspect['name'])} ({role}){_per_unit(suspect, unit)}"
    yield "how much", f"{interval(finding['growth_bytes_per_generation'])} per {unit}"
    start = finding["started_at_generation"]
    if start is not None:
        yield "when", f"since {unit} {format_count(start['estimate'])}"


def role_words(finding: Json, place: int) -> str:
    """Return the role of a suspect, followed by "with a graph" if the suspect covers only tensors with a graph."""
    role = str(finding["suspects"][place]["role"])
    return (
        f"{role}, with a graph"
        if finding.get("kind") == "graph"
        and not place
        and role == "type"
        and finding["suspects"][0]["name"] != GRAPH_NODE
        else role
    )


def graph_rates(verdict: Json | None) -> dict[str, float]:
    """Return how fast tensors with a graph grow, by type, according to the findings.

    Each rate is a part of the growth rate of its type.
    """
    rates: dict[str, float] = {}
    found = ((f["suspects"][0], f) for f in (verdict or {}).get("findings", ()) if f["suspects"])
    for first, finding in found:
        rate = first["count_per_generation"]
        is_graph = role_words(finding, 0) != first["role"]
        if is_graph and finding["status"] in GROWING and rate is not None:
            rates[first["name"]] = rates.get(first["name"], 0.0) + rate
    return rates


def with_graphs(rate: str, name: str, graphs: Mapping[str, float]) -> str:
    """Return text such as ``+49, 30 with a graph``, or only ``rate`` if ``graphs`` does not contain the type."""
    return f"{rate}, {format_count(graphs[name])} with a graph" if name in graphs else rate


def of_process(named: str | None, write: Write = str) -> str:
    """Return text such as ``, rank 1 main`` for a finding in a run with several processes, otherwise an empty
    string.
    """
    return f", {write(join_processes(named))}" if named else ""


def seen(verdict: Json) -> str:
    """Return the basis of a verdict, such as ``14 generations`` or ``59 readings in 581 seconds``.

    For a verdict from an older server, which does not include the time, the count alone is returned.
    """
    return seen_of(verdict["generations"], verdict.get("generations_passed"), verdict["unit"])


def compared(comparison: Json, unit: str) -> str:
    """Return the basis of a comparison, in the format of `seen`."""
    number, passed = (
        comparison.get(name) for name in ("generations_compared", "generations_passed")
    )
    return seen_of(number or 0, passed, unit)


def _per_unit(suspect: Json, unit: str) -> str:
    parts = []
    if suspect["count_per_generation"] is not None:
        parts.append(format_rate(suspect["count_per_generation"], unit, "more"))
    if suspect["bytes_per_generation"] is not None:
        parts.append(f"{format_bytes(suspect['bytes_per_generation'])} per {unit}")
    return f": {', '.join(parts)}" if parts else ""


def interval(growth: Mapping[str, float]) -> str:
    """Return text such as ``+7.10 GiB (6.90 GiB to 7.30 GiB)``."""
    return format_interval(
        growth["estimate"], growth["low"], growth["high"], format_change, format_bytes
    )


def change_interval(growth: Mapping[str, float] | None, per: str = "") -> str:
    """Return text such as ``-20.00 MiB per generation (-24.00 MiB to -16.00 MiB)``. Unlike in `interval`, both ends are
    signed.
    """
    if growth is None:
        return NOT_MEASURED
    span = in_brackets(format_range(growth["low"], growth["high"], format_change))
    return f"{format_change(growth['estimate'])}{per}{span}"


def next_to_finding(verdict: Json) -> str:
    """Return " (private memory)" if the leading finding is about other memory, otherwise ""."""
    finding = leading_finding(verdict)
    is_other = finding is not None and finding.get("kind") in NOT_PRIVATE
    return " (private memory)" if is_other else ""


def forecast(oom: Json, unit: str) -> str:
    """Return the forecast sentence, followed by the risk unless the risk is "none"."""
    sentence = forecast_sentence(oom, unit)
    return sentence if oom["risk"] == "none" else f"{sentence}, {oom['risk']} risk"


def is_forecast_known(oom: Json) -> bool:
    """Return True if memory has a known limit, so that a forecast makes sense."""
    return oom.get("limit_bytes") is not None


def forecast_sentence(oom: Json, unit: str) -> str:
    """Return the forecast of when memory runs out. An older server sends no sentence, but may send a generation."""
    if oom.get("sentence"):
        return str(oom["sentence"])
    if oom.get("generation"):
        return f"OOM near {unit} {round(oom['generation']['estimate']):,}"
    return "not in sight" if is_forecast_known(oom) and oom["risk"] == "none" else "not known"


def forecast_headline(oom: Json, unit: str) -> tuple[str, str]:
    """Return the forecast in two parts: the statement, and its conditions (rate, interval and time)."""
    sentence = forecast_sentence(oom, unit)
    found = re.fullmatch(r"(.+?),? (at this rate.*|\(.*\))", sentence)
    return (found[1], found[2]) if found else (sentence, "")


def change_rows(comparison: Json, unit: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (what, before, after, change) for growth, memory, peak and time. A side that was not measured is empty."""
    timed = () if unit in UNITS_OF_TIME else (comparison["seconds_per_generation"],)
    for title, change, write in (
        (f"growth per {unit}", comparison["growth_bytes_per_generation"], _growth),
        (memory_title(comparison, unit), comparison.get("memory_after"), format_bytes),
        ("peak memory", comparison["peak_bytes"], format_bytes),
        *((f"seconds per {unit}", change, _seconds) for change in timed),
    ):
        if change is None:
            # The runs have no generation in common, or an older server did not send the change.
            continue
        before, after = (
            "" if change[side] is None else write(change[side]) for side in ("before", "after")
        )
        yield title, before, after, percent(change["change_percent"])


def memory_title(comparison: Json, unit: str) -> str:
    """Return ``memory after 7 generations`` or ``memory at second 50`` for the newest generation that both runs have.

    Return an empty string if the runs have no generation in common.
    """
    found = comparison.get("memory_after")
    if not found:
        return ""
    if unit in UNITS_OF_TIME:
        return f"memory at {unit} {found['generation']:,}"
    return f"memory after {count_of(found['generations'], unit)}"


def gauge_rows(comparison: Json) -> Iterator[tuple[str, str, str, str]]:
    """Yield (gauge, before, after, change) for each gauge. An older server sends no gauges."""
    for each in comparison.get("by_gauge") or ():
        before, after = (
            "" if each[side] is None else format_number(each[side]) for side in ("before", "after")
        )
        yield (
            each["gauge"],
            before,
            after,
            "no change" if each["same"] else percent(each["change_percent"]),
        )


def survival_line(comparison: Json) -> str:
    """Return the sentence on how far both runs got, or an empty string if an older server did not send the sentence."""
    return str((comparison.get("survival") or {}).get("sentence", ""))


def rating_words(each: Json) -> str:
    """Return the rating of a changed count, such as ``good``, ``expected: 2`` or ``problem: expected 2``."""
    word, bounds = each["change_rating"], each["expected"]
    if word == "unknown":
        return "not known yet"
    if word == "expected":
        return f"expected: {bounds or 'it grows, but no finding names it'}"
    if word == "problem":
        return f"problem: expected {bounds}" if each["rating"] == "problem" else "problem: grows"
    return str(word)


def percent(change: float | None) -> str:
    """Return text such as ``-95.0 %``, or an empty string if there is nothing to compare with."""
    return "" if change is None else format_percent_change(change)


def _growth(growth: Mapping[str, float] | float) -> str:
    return format_change(growth["estimate"] if isinstance(growth, Mapping) else growth)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"


def finding_line(finding: Json, write: Write = str) -> str:
    """Return a line about one finding of a comparison, such as ``confirmed in evaluate: trading.Environment``."""
    names = ", ".join(write(suspect["name"]) for suspect in finding["suspects"][:2])
    where = write(finding["phase"]) if finding["phase"] else "no single phase"
    return f"{finding['status']} in {where}: {names or finding['kind']}"
