"""The expectations section of a run's page, with broken expectations first. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from leakline.analysis.assertions.declared_limits import (
    KEPT_BY_RUN,
    STATE_WORDS,
    assertion_title,
    writer_of,
)
from leakline.analysis.assertions.expected_counts import expected_text, stands_for
from leakline.analysis.results import BY_READING, StableCount
from leakline.text_format import count_of, format_bytes

from ...store.alerts.assertions import AcceptedCount
from ..rendering import number_formats
from ..rendering.page_contexts import CountForm, CountForms, CountList, Section
from ..rendering.table_cells import Field, rated, table

Json = Mapping[str, Any]
# Counts beyond this number are folded.
SHOWN_AT_ONCE: Final = 5
# The number of stable counts shown. All accepted counts are shown, so that each can be revoked.
MOST: Final = 50
# The number of deviations shown per band; the API has all deviations.
_MAX_DEVIATIONS: Final = 10
_STATUSES: Final = {
    "broken": "confirmed", "above_normal": "watch", "undecided": "learning", "open": "learning",
    "not_measured": "learning", "holds": "ok",
}  # fmt: skip
_ORDER: Final = ("confirmed", "watch", "learning", "ok")
_DECLARED_BY: Final = {
    "band": "band", "gauge": "gauge", "budget": "budget", "fix": "fix", "expect": "program", "accepted": "a person",
}  # fmt: skip


def expectations(
    checks: Sequence[Json], unit: str, forms: CountForms | None = None
) -> Section | None:
    """Return the section, or None if nothing was declared, accepted or proposed.

    ``checks`` are assertions in the API's JSON format.
    """
    if not (checks or forms):
        return None
    how = (
        "Everything that was declared, promised or accepted for this run, with broken expectations "
        f"first. Bands and limits of gauges are checked in each {unit}; values equal to a bound are "
        "allowed. A budget is broken once growth reaches its leak limit, and a promise if the entire "
        "interval is beyond the promised value. A count is broken by one missing instance, or by one "
        "extra instance that remains after a collection."
    )
    heads = ["expected", "by", "state", "#measured", "#off by", "in words"]
    rows = [row for each in sorted(checks, key=_order) for row in _rows(each, unit)]
    return Section(
        "expectations", "Expectations", how, table=table(heads, rows, tall=False) if rows else None,
        empty="This run has no expectations yet.", counts=forms,
    )  # fmt: skip


def count_forms(
    run: Json, steady: Sequence[StableCount], accepted: Sequence[AcceptedCount]
) -> CountForms | None:
    """Return the forms for counts; ``accepted`` contains all accepted counts of the run's project."""
    if not (steady or accepted):
        return None
    return CountForms(
        _folded([_accepted_form(run, each) for each in accepted]),
        _folded([_steady_form(run, each) for each in steady[:MOST]], len(steady)),
    )


def _status(check: Json) -> str:
    """Return the status to show.

    The status is "watch" for a broken band, which is not a leak, and for extra instances that a
    collection may still remove.
    """
    if check["origin"] in BY_READING and check["state"] == "broken":
        return "watch"
    return (
        "watch"
        if check["state"] == "undecided" and check["violations"]
        else _STATUSES[check["state"]]
    )


def _order(check: Json) -> int:
    return _ORDER.index(_status(check))


def _rows(check: Json, unit: str) -> list[list[Field]]:
    """Return the row of an assertion, followed by a row for each generation outside its band."""
    write = writer_of(check["metric"])
    rows: list[list[Field]] = [[
        assertion_title(check, unit), _DECLARED_BY[check["origin"]],
        rated(STATE_WORDS[check["state"]], _status(check)), *_figures(check), check["sentence"],
    ]]  # fmt: skip
    deviations = check["deviations"][:_MAX_DEVIATIONS] if check["origin"] in BY_READING else ()
    for each in deviations:
        where = "below" if each["difference"] < 0 else "above"
        place = f"– {unit} {each['generation']:,}"
        rows.append(
            [place, "", where, write(each["measured"]), _signed(check, each["difference"]), ""]
        )
    left = check["violations"] - len(deviations) if deviations else 0
    if left > 0:
        rows.append([f"– {left:,} more", "", "", "", "", ""])
    return rows


def _signed(check: Json, value: float) -> str:
    if writer_of(check["metric"]) is format_bytes:
        return number_formats.change(value)
    return f"+{number_formats.count(value)}" if value > 0 else number_formats.count(value)


def _figures(check: Json) -> tuple[str, str]:
    """Return the measured value and its distance from the bound.

    Both strings are empty for a band, whose deviations have separate rows.
    """
    if check["origin"] in BY_READING:
        return "", ""
    # A budget that holds shows the measured growth; every other assertion shows its worst value.
    is_worst = check["worst"] is not None and (
        check["metric"] != KEPT_BY_RUN or check["state"] != "holds"
    )
    measured = check["measured"]
    amount = check["worst"] if is_worst else measured and measured["estimate"]
    if amount is None:
        return number_formats.NOT_MEASURED, "–"
    bound = next((check[end] for end in ("high", "leak") if check[end] is not None), None)
    off = (
        amount - bound
        if bound is not None and amount > bound
        else min(0, amount - (check["low"] or amount))
    )
    write = number_formats.change if check["origin"] == "budget" else writer_of(check["metric"])
    return write(amount), _signed(check, off) if off else "–"


def _folded(forms: Sequence[CountForm], number: int = 0) -> CountList:
    """Split the forms into shown and folded forms; ``number`` includes counts without a form."""
    shown, rest = tuple(forms[:SHOWN_AT_ONCE]), tuple(forms[SHOWN_AT_ONCE:])
    left_out = max(0, number - len(forms))
    more = f"{len(rest):,} more" if rest else ""
    if left_out:
        more += f"; the API lists {left_out:,} others"
    return CountList(shown, rest, more)


def _steady_form(run: Json, each: StableCount) -> CountForm:
    seen = count_of(each.generations, run["unit"])
    count = number_formats.count(each.count)
    where = f"at every reading of the last {seen}"
    if each.after is not None:
        where = f"after {each.after} in each of the last {seen}"
    instead = f"; accepted until now: {each.replaces}" if each.replaces else ""
    return CountForm(
        type=each.type,
        text=f"was {count} {where}{instead}",
        action=_address(run),
        fields=(*_named(each.type, each.after), ("count", f"{each.count}")),
        button=f"Expect {count}",
        label=f"Expect {count} {each.type}{_after(each.after)}",
    )


def _accepted_form(run: Json, each: AcceptedCount) -> CountForm:
    wanted = each.expectation
    since = number_formats.moment(each.created_at)
    return CountForm(
        type=wanted.type,
        text=f"is accepted as {expected_text(wanted)} in project {run['project']}{_but(run, each)}",
        action=f"{_address(run)}/take-back",
        fields=_named(wanted.type, wanted.after),
        button="Stop expecting",
        label=f"Stop expecting {expected_text(wanted)} {wanted.type}",
        since_at=since,
        since=number_formats.clock(since),
    )


def _but(run: Json, each: AcceptedCount) -> str:
    """Return why this run does not check the count, or an empty string for a checked count."""
    wanted = each.expectation
    if any(
        e["accepted"] and (e["type"], e["after"]) == (wanted.type, wanted.after)
        for e in run["expectations"]
    ):
        return ""
    if any(not e["accepted"] and stands_for(e["type"], wanted.type) for e in run["expectations"]):
        return "; in this run, the program's own declaration takes precedence"
    return "; this run had already ended"


def _address(run: Json) -> str:
    return f"/runs/{quote(run['id'], safe='')}/expectations"


def _named(name: str, after: str | None) -> tuple[tuple[str, str], ...]:
    return (("type", name), *((("after", after),) if after is not None else ()))


def _after(after: str | None) -> str:
    return "" if after is None else f" after {after}"
