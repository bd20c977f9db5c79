"""The template context of the list of runs at ``/``. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl, quote, urlencode

from leakline.text_format import count_of
from leakline.transport.oom_inference import ended_as

from ...store.maintenance.run_deletion import Deleted
from ...store.runs.run_order import ORDERS, SEVEREST, By, Order, order_of
from ...store.runs.runs import DELETED
from ..rendering import number_formats
from ..rendering.page_contexts import (
    Filter,
    JustDeleted,
    ListHead,
    Option,
    RunGroup,
    RunRow,
    RunsPage,
    TagLink,
)
from ..rendering.table_cells import sparkline
from ..run_page.verdict_view import STATUSES, forecast_in_short, forecast_text, status_of
from ..run_page.view import progress
from ..search_query import is_state, rebuilt, statuses_in, written

Json = Mapping[str, Any]
Grouping = Literal["project", "tag", "none"]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)
_GROUP_LABELS: Final = {"project": "By project", "tag": "By tag", "none": "Not grouped"}
_NOTHING_FOUND: Final = (
    "No run matches this search. Words without a filter are searched in names, projects and ids. "
    "Filters search other fields, for example config:lr=0.001, tag:baseline or started:<14d."
)
# Order -> (label, label of the reverse order).
_SORT_LABELS: Final[Mapping[By, tuple[str, str]]] = {
    "severity": ("Most urgent", "Least urgent first"),
    "seen": ("Last seen", "Last seen, oldest first"),
    "started": ("Started", "Started, oldest first"),
    "name": ("Name", "Name, Z to A"),
    "growth": ("Growth", "Growth, smallest first"),
    "memory": ("Memory", "Memory, smallest first"),
    "out": ("Runs out", "Runs out, last first"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """The contents and order of the list, as specified by its address."""

    query: str = ""
    group: Grouping = "project"
    order: Order = SEVEREST

    @property
    def fields(self) -> dict[str, str]:
        """The query parameters that differ from their defaults."""
        found = {"q": self.query, "group": self.group, "sort": str(self.order)}
        usual = {"q": "", "group": "project", "sort": str(SEVEREST)}
        return {name: value for name, value in found.items() if value != usual[name]}

    def href(self, **more: str) -> str:
        fields = self.fields | more
        return f"/?{urlencode(fields)}" if fields else "/"


def shown_of(query: str, group: str | None, sort: str | None) -> Shown:
    """Parse the parameters of an address; unknown values become the defaults."""
    usual: Grouping = "project"
    grouping = next((each for each in GROUPINGS if each == group), usual)
    return Shown(query, grouping, order_of(sort or "") or SEVEREST)


def shown_again(view: str) -> Shown:
    """Parse the ``RunsPage.view`` that a form sent back."""
    found = dict(parse_qsl(view))
    return shown_of(found.get("q", ""), found.get("group"), found.get("sort"))


def runs_page(
    items: Sequence[Json],
    shown: Shown,
    next_cursor: str | None,
    counts: Mapping[str, int],
    problems: Sequence[str],
    server: str,
    just_deleted: Sequence[Deleted] = (),
    deleted: int = 0,
    *,
    any_runs: bool,
) -> RunsPage:
    """Return the template context of the list.

    ``counts`` maps statuses to the number of matching runs, ``problems`` are invalid parts of the
    query, and ``deleted`` is the number of runs awaiting removal.
    """
    return RunsPage(
        title="Runs",
        query=shown.query,
        filters=_filters(shown, counts),
        problems=tuple(problems),
        grouping=tuple(Option(g, _GROUP_LABELS[g], g == shown.group) for g in GROUPINGS),
        sorting=_sorting(shown.order),
        heads=_heads(shown),
        shows_started=_shows_started(shown),
        groups=_grouped(items, shown),
        view=urlencode(shown.fields),
        shows_deleted=_shows_deleted(shown),
        deleted=_just_deleted(just_deleted),
        deleted_href=_deleted_href(shown) if deleted else None,
        deleted_note=f"{count_of(deleted, 'deleted run')} can still be restored."
        if deleted
        else "",
        empty=_NOTHING_FOUND if shown.query else "No runs are left.",
        next_href=shown.href(cursor=next_cursor) if next_cursor else None,
        server=server,
        any_runs=any_runs,
    )


def _just_deleted(found: Sequence[Deleted]) -> JustDeleted | None:
    if not found:
        return None
    what = found[0].name if len(found) == 1 else f"{len(found):,} runs"
    until = number_formats.moment(found[0].removed_at)
    # The time must be exact, because the store finds the deleted runs by this time.
    return JustDeleted(
        f"Deleted {what}.", until, number_formats.clock(until), repr(found[0].deleted_at)
    )


def _shows_deleted(shown: Shown) -> bool:
    return DELETED in statuses_in(shown.query)


def _deleted_href(shown: Shown) -> str | None:
    return None if _shows_deleted(shown) else replace(shown, query=f"status:{DELETED}").href()


def _filters(shown: Shown, counts: Mapping[str, int]) -> tuple[Filter, ...]:
    """Return filters for the statuses that occur or are selected; run states in the search are kept."""
    chosen = statuses_in(shown.query)
    made = []
    for name in STATUSES:
        count, status = counts.get(name, 0), status_of(name)
        if not count and name not in chosen:
            continue
        more = () if name in chosen else (f"status:{name}",)
        query = rebuilt(shown.query, lambda word: word.name != "status" or is_state(word), *more)
        href = replace(shown, query=query).href()
        counted = replace(status, word=f"{status.word} {count:,}")
        made.append(Filter(counted, href, name in chosen))
    return tuple(made)


def _sorting(order: Order) -> tuple[Option, ...]:
    made = []
    for by in ORDERS:
        turned = order.turned and by == order.by
        made.append(Option(str(Order(by, turned)), _SORT_LABELS[by][turned], by == order.by))
    return tuple(made)


def _heads(shown: Shown) -> tuple[ListHead, ...]:
    return (
        ListHead("Pick", hidden=True),
        _head(shown, "severity", "Verdict"),
        _head(shown, "name", "Run"),
        ListHead("Progress"),
        ListHead("Finding"),
        _head(shown, "growth", "Growth", number=True),
        _head(shown, "out", "Out of memory"),
        _head(shown, "memory", "Memory"),
        _head(shown, "started", "Started", number=True)
        if _shows_started(shown)
        else _head(shown, "seen", "Last seen", number=True),
    )


def _shows_started(shown: Shown) -> bool:
    """Return True if "Started" replaces "Last seen": the sort key should be visible."""
    return shown.order.by == "started"


def _head(shown: Shown, by: By, label: str, *, number: bool = False) -> ListHead:
    now = shown.order
    if by != now.by:
        return ListHead(label, replace(shown, order=Order(by)).href(), number=number)
    other = replace(shown, order=Order(by, not now.turned))
    return ListHead(label, other.href(), "descending" if now.falling else "ascending", number)


def _grouped(items: Sequence[Json], shown: Shown) -> tuple[RunGroup, ...]:
    """Return groups in the order of their first run; a run appears under each of its tags."""
    if shown.group == "none":
        return (
            (RunGroup("", None, tuple(_row(item, "0", shown) for item in items)),) if items else ()
        )
    found: dict[str | None, list[Json]] = {}
    for item in items:
        keys = [item["project"]] if shown.group == "project" else item["tags"] or [None]
        for key in keys:
            found.setdefault(key, []).append(item)
    return tuple(
        RunGroup(
            "No tag" if key is None else key,
            None if key is None else _only(shown, written(shown.group, key)),
            tuple(_row(item, str(place), shown) for item in of_group),
        )
        for place, (key, of_group) in enumerate(found.items())
    )


def _only(shown: Shown, word: str) -> str:
    return replace(shown, query=word).href()


def _row(run: Json, group: str, shown: Shown) -> RunRow:
    leading = run["leading_growth_bytes_per_generation"]
    growth = leading or run["growth_bytes_per_generation"]
    return RunRow(
        id=run["id"],
        box=f"pick-{group}-{run['id']}",
        name=run["name"],
        title=": ".join((run["name"], *([", ".join(run["tags"])] if run["tags"] else ()))),
        href=f"/runs/{quote(run['id'], safe='')}",
        status=status_of(run["status"]),
        priority=run["priority"] or "",
        sentence=run["summary"] or "Waiting for the first verdict.",
        state=run["state"],
        ending=ended_as(run["state"], run["reason"]),
        tags=tuple(TagLink(tag, _only(shown, written("tag", tag))) for tag in run["tags"]),
        progress=progress(run),
        short_progress=f"{run['generations']:,}/{run['total']:,}"
        if run["total"]
        else progress(run),
        done=min(run["generations"], run["total"] or 0),
        total=run["total"] or None,
        sparkline=sparkline(run["sparkline"]),
        memory=number_formats.size(run["rss_bytes"]),
        growth=number_formats.change(growth["estimate"]) if growth else "–",
        per=f"{'of the finding' if leading else 'private memory'}, per {run['unit']}"
        if growth
        else "",
        forecast=forecast_text(run["oom"], run["unit"]),
        out=forecast_in_short(run["oom"], run["unit"]),
        seen_at=run["last_seen_at"],
        seen=number_formats.clock(run["last_seen_at"]),
        started_at=run["started_at"],
        started=number_formats.clock(run["started_at"]),
    )
