"""The contexts of page templates: one frozen dataclass per page.

A test compares these classes with the templates. All values are ready to show: numbers are
formatted and links are complete, so that templates compute nothing. This module also builds the
addresses of reports, because several pages link to reports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from ...charts.chart_parts import Chart

MAX_FILE_NAME: Final = 80
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True)
class Share:
    text_href: str
    html_href: str
    markdown_href: str
    json_href: str
    csv_href: str = ""  # empty if there is no CSV
    link_action: str = ""  # address that creates a link; empty if links cannot be created
    link_days: tuple[tuple[str, str], ...] = ()
    public: bool = True  # True if links use the public URL of the server


# (days, label) of each lifetime that users can select for a link to a run.
LINK_DAYS: Final = (("1", "1 day"), ("7", "7 days"), ("30", "30 days"))


def share_run(run_id: str, process: str = "", *, public: bool = True) -> Share:
    """Return the addresses of a run's reports; the HTML report shows ``process``."""
    address = f"/runs/{quote(run_id, safe='')}"
    shown = f"?{urlencode({'process': process})}" if process else ""
    return Share(
        f"{address}/report.txt",
        f"{address}/report.html{shown}",
        f"{address}/report.md",
        f"/api/v1{address}/verdict",
        link_action=f"{address}/share",
        link_days=LINK_DAYS,
        public=public,
    )


def share_comparison(before: str, after: str) -> Share:
    which = urlencode({"before": before, "after": after})
    return Share(
        f"/compare/report.txt?{which}",
        f"/compare/report.html?{which}",
        f"/compare/report.md?{which}",
        f"/api/v1/compare?{which}",
        f"/compare/report.csv?{which}",
    )


def file_name(words: tuple[str, ...], ending: str) -> str:
    """Return a name such as ``leakline-erl-trading-before-fix.html`` that is valid on every file system."""
    plain = (_NOT_IN_NAMES.sub("-", word).strip("-.") for word in words)
    name = "-".join(("leakline", *filter(None, plain)))
    return f"{name[:MAX_FILE_NAME].rstrip('-.')}.{ending}"


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a verdict, shown by a colour, a word and a shape."""

    status: str
    word: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small line chart: points of SVG shapes in a box of 120 by 28."""

    line: str
    area: str
    description: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell. ``time`` is ISO 8601; the page shows it in the viewer's time zone."""

    text: str
    code: bool = False
    status: str | None = None
    href: str | None = None
    title: str | None = None
    time: str | None = None
    absent: bool = False
    outside: bool = False  # ``href`` leads to another site
    sparkline: Sparkline | None = None


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    number: bool = False
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[Cell, ...]
    sum: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    tall: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """A button that selects a group of lines in a chart."""

    id: str
    label: str
    pressed: bool


@dataclass(frozen=True, slots=True)
class AxisLink:
    """A link that switches the page to another x-axis."""

    label: str
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, with a description for people who cannot see the chart."""

    chart: Chart
    description: str
    choices: tuple[Choice, ...] = ()
    low: bool = False
    axes: tuple[AxisLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar for comparing amounts; ``share`` is a percentage of the largest amount, at least 0."""

    label: str
    text: str
    share: float
    note: str = ""
    href: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class CountForm:
    """A count with a button that accepts or revokes it; screen readers read out ``label``."""

    type: str
    text: str
    action: str
    fields: tuple[tuple[str, str], ...]
    button: str
    label: str
    since_at: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class CountList:
    """Counts with forms; ``more`` is the label of the folded counts."""

    shown: tuple[CountForm, ...]
    folded: tuple[CountForm, ...]
    more: str


@dataclass(frozen=True, slots=True)
class CountForms:
    """The counts that people accepted, and the stable counts of a run."""

    accepted: CountList
    steady: CountList


@dataclass(frozen=True, slots=True)
class Sign:
    """A legend entry for a symbol below a chart.

    ``kind`` determines the symbol's shape (static/js/marks.js) and colour.
    """

    kind: str
    word: str


@dataclass(frozen=True, slots=True)
class RangeLink:
    """A link that shows a range of the run, or the entire run."""

    label: str
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RangeForm:
    """The form for selecting two points; ``hidden`` contains the other query parameters."""

    action: str
    hidden: tuple[tuple[str, str], ...]
    unit: str
    first: str
    last: str
    least: str
    step: str


@dataclass(frozen=True, slots=True)
class RankedChanges:
    """A list of changes as bars; ``rest`` gives the number of changes without a bar."""

    title: str
    bars: tuple[Bar, ...]
    rest: str
    empty: str


@dataclass(frozen=True, slots=True)
class RangeChanges:
    """The changes between two points; without a title, only the form is shown."""

    form: RangeForm
    title: str = ""
    sentence: str = ""
    lists: tuple[RankedChanges, ...] = ()
    whole_href: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of evidence; ``fold`` collapses the table, and ``note`` is a sentence with measured values."""

    id: str
    title: str
    how: str
    figure: Figure | None = None
    table: Table | None = None
    fold: bool = False
    note: str = ""
    empty: str = ""
    signs: tuple[Sign, ...] | None = None  # legend; None if the chart has no legend
    counts: CountForms | None = None
    ranges: tuple[RangeLink, ...] | None = None  # None if the table has no ranges


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    detail: str
    href: str = ""
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the checklist: a question, a short answer, and the evidence."""

    question: str
    word: str
    status: str  # the status that determines the colour
    mark: str  # the name of the shape
    sentence: str


@dataclass(frozen=True, slots=True)
class SuspectView:
    name: str
    role: str
    rate: str


@dataclass(frozen=True, slots=True)
class SaidView:
    """An acknowledgement of a leak; ``undo`` labels the revoke button, and ``reason`` may contain links."""

    kind: str
    verb: str
    undo: str
    reason: str
    since_at: str
    since: str
    until_at: str | None
    until: str


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    label: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Muting:
    """The forms for muting a finding; ``action`` is the target, and ``back`` the page's address."""

    fingerprint: str
    action: str
    project: str
    back: str
    incident_href: str
    expiries: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class FindingView:
    status: Status
    title: str
    kind: str
    priority: str  # empty if the finding does no harm
    suspects: tuple[SuspectView, ...]
    facts: tuple[str, ...]
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    search: str  # the type whose holders the process can be asked to find, or empty
    location: Cell | None = None  # code location named by the newest fix of the finding's phase
    said: tuple[SaidView, ...] = ()
    muting: Muting | None = None  # set for incidents on a run's page


@dataclass(frozen=True, slots=True)
class VerdictView:
    status: Status
    sentence: str
    support: str
    ruled_out: tuple[str, ...]
    ending: str = ""  # how the run ended, if it ended badly, and its last reading


@dataclass(frozen=True, slots=True)
class TagLink:
    label: str
    href: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row of the list of runs.

    ``box`` is the id of its checkbox. ``title`` includes the tags, which the row may cut off. ``done``
    and ``total`` are only meaningful if the run has a plan.
    """

    id: str
    box: str
    name: str
    title: str
    href: str
    status: Status
    priority: str
    sentence: str
    state: str
    ending: str
    tags: tuple[TagLink, ...]
    progress: str
    short_progress: str
    done: int
    total: int | None
    sparkline: Sparkline | None
    memory: str
    growth: str
    per: str
    forecast: str
    out: str  # the forecast in a few words
    seen_at: str
    seen: str
    started_at: str
    started: str


@dataclass(frozen=True, slots=True)
class RunGroup:
    """A group of runs with a common project or tag; ``label`` is empty for ungrouped runs."""

    label: str
    href: str | None
    rows: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True)
class ListHead:
    """A column heading; ``sort`` is the ``aria-sort`` attribute, and ``href`` sorts the list."""

    label: str
    href: str | None = None
    sort: str | None = None
    number: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    status: Status
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class JustDeleted:
    """Runs that were deleted together; the form field ``moment`` restores the runs."""

    sentence: str
    until_at: str
    until: str
    moment: str


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The template context of ``/``."""

    title: str
    query: str
    filters: tuple[Filter, ...]
    grouping: tuple[Option, ...]
    sorting: tuple[Option, ...]
    heads: tuple[ListHead, ...]
    shows_started: bool
    groups: tuple[RunGroup, ...]
    view: str
    shows_deleted: bool
    deleted: JustDeleted | None
    deleted_href: str | None
    deleted_note: str
    empty: str
    problems: tuple[str, ...]
    next_href: str | None
    server: str
    any_runs: bool


@dataclass(frozen=True, slots=True)
class HeadFact:
    name: str
    value: str
    href: str | None = None  # a link to another site


@dataclass(frozen=True, slots=True)
class RunChoice:
    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Channel:
    """An alert channel; ``status`` determines its colour and shape."""

    name: str
    word: str
    status: str


@dataclass(frozen=True, slots=True)
class RunHead:
    id: str
    name: str
    project: str
    project_href: str
    state: str
    reason: str
    end_inferred: bool
    ending: str
    listens: bool  # True if a process may be able to receive requests
    unit: str
    progress: str
    done: int
    planned: int | None
    started_at: str
    started: str
    seen_at: str
    seen: str
    quiet_seconds: float  # time from the last message until the page was rendered
    tags: tuple[str, ...]
    facts: tuple[HeadFact, ...]
    fragments_href: str
    lines_href: str
    changes_href: str
    live_href: str
    requests_href: str
    offers_cleanup: bool
    revision: int
    share: Share
    previous: RunChoice | None  # the previous run of the project, for a comparison
    here: str  # address of the current view, for forms that return to it
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab; ``sections`` is empty for a closed tab. ``note`` gives a reason to open the tab."""

    id: str
    title: str
    href: str
    chosen: bool
    note: str
    sections: tuple[Section, ...]
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPage:
    """The template context of ``/runs/{run}``, and of its fragments for live updates.

    ``title`` and ``icon`` (an address) show the state in the browser tab.
    """

    title: str
    icon: str
    run: RunHead
    verdict: VerdictView
    facts: tuple[Tile, ...]
    findings: tuple[FindingView, ...]
    findings_title: str
    memory: Section
    changes: RangeChanges | None  # None if there are fewer than two points
    phases: tuple[Bar, ...]
    phases_note: str
    processes: tuple[Bar, ...]
    more_processes: tuple[Bar, ...]
    left_out: str
    asked: tuple[tuple[str, str], ...]  # query parameters that are kept when another tab is opened
    tabs: tuple[Tab, ...]


@dataclass(frozen=True, slots=True)
class ChangesFragment:
    """The parts of a run's page that depend on the selected range.

    ``types`` is None if another tab is open.
    """

    changes: RangeChanges | None
    types: Section | None


@dataclass(frozen=True, slots=True)
class PickPage:
    """The template context of ``/compare`` before two runs are chosen.

    ``choices`` are the runs that match ``query`` and the runs that are already chosen.
    """

    title: str
    message: str
    choices: tuple[RunChoice, ...]
    query: str
    problems: tuple[str, ...]
    note: str
    any_runs: bool
    before: str
    after: str
    server: str


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """The template context of an error page."""

    title: str
    status_code: int
    message: str
