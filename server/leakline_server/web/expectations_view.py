"""Expected counts: what the program declared, what people accepted, and what a run keeps to and could be. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from leakline.analysis.contracts import expected_text, stands_for
from leakline.analysis.results import ExpectationRow, SteadyCount
from leakline.text_format import count_of, format_times

from ..store.assertions import AcceptedCount
from . import formats
from .contexts import CountForm, CountForms, CountList, Section
from .tables import Field, code, place, rated, table

Json = Mapping[str, Any]
# The rest is folded.
SHOWN_AT_ONCE: Final = 5
# Of what a run keeps to; accepted counts are all there, to be taken back.
MOST: Final = 50
_STATES: Final = {
    "holds": ("holds", "ok"),
    "broken": ("broken", "confirmed"),
    "unproven": ("broken once, unproven", "watch"),
    "never_seen": ("not seen yet", "learning"),
}


def expectations(
    run: Json, found: Sequence[ExpectationRow], steady: Sequence[SteadyCount], accepted: Sequence[AcceptedCount]
) -> Section | None:  # fmt: skip
    """``accepted``: all that stand in the project of the run."""
    if not (found or steady or accepted):
        return None
    how = "Expected counts are exact: one instance too many after a collection is enough."
    forms = CountForms(
        _folded([_accepted_form(run, each) for each in accepted]),
        _folded([_steady_form(run, each) for each in steady[:MOST]], len(steady)),
    )
    return Section(
        "expectations", "Expectations", how, table=_table(found) if found else None,
        empty="Of this run nothing is expected yet.", counts=forms,
    )  # fmt: skip


def _table(found: Sequence[ExpectationRow]) -> Any:
    heads = ["type", "expected", "after", "#last seen", "first broken", "state"]
    rows = [_row(each) for each in found]
    if any(each.accepted for each in found):
        heads.append("said by")
        rows = [[*row, _by(each)] for row, each in zip(rows, found, strict=True)]
    if any(each.process for each in found):
        heads.append("process")
        rows = [[*row, each.process or "–"] for row, each in zip(rows, found, strict=True)]
    return table(heads, rows, tall=False)


def _row(each: ExpectationRow) -> list[Field]:
    word, status = _STATES[each.state]
    broken = each.state == "broken" and each.broken_times > 1
    times = f" {format_times(each.broken_times)}" if broken else ""
    return [
        code(each.type), each.expected, each.after or "always", formats.count(each.last_count),
        place(each.first_broken_at), rated(f"{word}{times}", status),
    ]  # fmt: skip


def _by(each: ExpectationRow) -> str:
    return "a person" if each.accepted else "the program"


def _folded(forms: Sequence[CountForm], number: int = 0) -> CountList:
    """``number``: of all, where not all have a form."""
    shown, rest = tuple(forms[:SHOWN_AT_ONCE]), tuple(forms[SHOWN_AT_ONCE:])
    left_out = max(0, number - len(forms))
    more = f"{len(rest):,} more" if rest else ""
    if left_out:
        more += f"; the API has another {left_out:,}"
    return CountList(shown, rest, more)


def _steady_form(run: Json, each: SteadyCount) -> CountForm:
    seen = count_of(each.generations, run["unit"])
    count = formats.count(each.count)
    where = f"at every reading of the last {seen}"
    if each.after is not None:
        where = f"after {each.after} in each of the last {seen}"
    instead = f"; accepted until now: {each.instead_of}" if each.instead_of else ""
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
    since = formats.moment(each.created_at)
    return CountForm(
        type=wanted.type,
        text=f"is accepted as {expected_text(wanted)} in project {run['project']}{_but(run, each)}",
        action=f"{_address(run)}/take-back",
        fields=_named(wanted.type, wanted.after),
        button="Take back",
        label=f"Take back {expected_text(wanted)} {wanted.type}",
        since_at=since,
        since=formats.clock(since),
    )


def _but(run: Json, each: AcceptedCount) -> str:
    """Why it says nothing of this run, where it does not."""
    wanted = each.expectation
    if any(
        e["accepted"] and (e["type"], e["after"]) == (wanted.type, wanted.after)
        for e in run["expectations"]
    ):
        return ""
    if any(not e["accepted"] and stands_for(e["type"], wanted.type) for e in run["expectations"]):
        return "; here the program says it itself, and that counts"
    return "; this run had ended before"


def _address(run: Json) -> str:
    return f"/runs/{quote(run['id'], safe='')}/expectations"


def _named(name: str, after: str | None) -> tuple[tuple[str, str], ...]:
    return (("type", name), *((("after", after),) if after is not None else ()))


def _after(after: str | None) -> str:
    return "" if after is None else f" after {after}"
