"""What each page's template may use: one frozen dataclass a page, compared with the template by a test.

Everything is ready to be shown: texts are formatted, links are made, nothing is computed in a template.
The addresses of the reports, which several pages offer, are made at the end.
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
    csv_href: str = ""  # nothing where there is none
    link_action: str = ""  # where a link to the page is made, if there can be one
    link_days: tuple[tuple[str, str], ...] = ()
    public: bool = True  # whether links begin with the address that the server is said to have


# (days, label) of the choices for how long a link to a run holds.
LINK_DAYS: Final = (("1", "1 day"), ("7", "7 days"), ("30", "30 days"))


def share_run(run_id: str, process: str = "", *, public: bool = True) -> Share:
    """Return the addresses of a run's reports; that of the HTML file names the process that the page shows."""
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
    """``leakline-erl-trading-before-fix.html``: what every file system takes, whatever a run is called."""
    plain = (_NOT_IN_NAMES.sub("-", word).strip("-.") for word in words)
    name = "-".join(("leakline", *filter(None, plain)))
    return f"{name[:MAX_FILE_NAME].rstrip('-.')}.{ending}"


@dataclass(frozen=True, slots=True)
class Status:
    """A verdict's mark: never shown by colour alone, but by shape (named like the status) and word as well."""

    status: str
    word: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Points of an SVG polyline in a box of 120 by 28."""

    line: str
    area: str
    description: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table. ``time`` is ISO 8601; the page shows it in the viewer's zone."""

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
    """A switch between groups of lines of one chart."""

    id: str
    label: str
    pressed: bool


@dataclass(frozen=True, slots=True)
class AxisLink:
    """The same page with this along its charts."""

    label: str
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with what belongs to it for those who cannot see it."""

    chart: Chart
    description: str
    choices: tuple[Choice, ...] = ()
    low: bool = False
    axes: tuple[AxisLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """One of several amounts that are compared; ``share`` of the largest in percent, at least 0."""

    label: str
    text: str
    share: float
    note: str = ""
    href: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class CountForm:
    """A count that a button expects, or expects no more; ``label`` says what it does to those who hear it alone."""

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
    """``more`` stands over those that are folded."""

    shown: tuple[CountForm, ...]
    folded: tuple[CountForm, ...]
    more: str


@dataclass(frozen=True, slots=True)
class CountForms:
    """What people accepted, and what a run keeps to."""

    accepted: CountList
    steady: CountList


@dataclass(frozen=True, slots=True)
class Sign:
    """What a sign at the foot of a chart stands for; ``kind`` names its shape (static/js/marks.js) and colour."""

    kind: str
    word: str


@dataclass(frozen=True, slots=True)
class RangeLink:
    """The page on a stretch of the run, or on all of it."""

    label: str
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RangeForm:
    """Asks for two points by number; ``hidden`` keeps the rest of the address."""

    action: str
    hidden: tuple[tuple[str, str], ...]
    unit: str
    first: str
    last: str
    least: str
    step: str


@dataclass(frozen=True, slots=True)
class RankedChanges:
    """``rest``: of how many more there is no bar."""

    title: str
    bars: tuple[Bar, ...]
    rest: str
    empty: str


@dataclass(frozen=True, slots=True)
class RangeChanges:
    """What changed between two points; without a title none were asked for, and there is the form alone."""

    form: RangeForm
    title: str = ""
    sentence: str = ""
    lists: tuple[RankedChanges, ...] = ()
    whole_href: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One piece of evidence. ``fold`` hides the table behind the chart; ``note`` is a measured sentence."""

    id: str
    title: str
    how: str
    figure: Figure | None = None
    table: Table | None = None
    fold: bool = False
    note: str = ""
    empty: str = ""
    signs: tuple[Sign, ...] | None = None  # of its chart, of what may have some
    counts: CountForms | None = None
    ranges: tuple[RangeLink, ...] | None = None  # that its table can be of, of what may have some


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    detail: str
    href: str = ""
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """One line of the checklist: a question, its answer in a word, and the evidence."""

    question: str
    word: str
    status: str  # the status whose colour it wears
    mark: str  # the name of its shape
    sentence: str


@dataclass(frozen=True, slots=True)
class SuspectView:
    name: str
    role: str
    rate: str


@dataclass(frozen=True, slots=True)
class SaidView:
    """What somebody said of a leak; ``kind`` as it is taken back, by the button ``undo``; ``reason`` with its links."""

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
    """The forms of a finding: ``action`` is where they are sent, ``back`` the address of the page they stand on."""

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
    priority: str  # nothing for what does no harm
    suspects: tuple[SuspectView, ...]
    facts: tuple[str, ...]
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    search: str  # the type whose holders the training can be asked to look for, or nothing
    location: Cell | None = None  # where a fix of its phase says that it is in the code
    said: tuple[SaidView, ...] = ()
    muting: Muting | None = None  # where it is an incident, on the page of its run


@dataclass(frozen=True, slots=True)
class VerdictView:
    status: Status
    sentence: str
    support: str
    ruled_out: tuple[str, ...]
    ending: str = ""  # of a run that died: how, and its last reading


@dataclass(frozen=True, slots=True)
class TagLink:
    label: str
    href: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """``box`` is the id of its check box on this page; ``title`` has the tags too, which may be cut off; ``done`` of
    ``total`` only where a run has a plan."""

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
    """Runs of this page that share a project or a tag; without a label where nothing is grouped."""

    label: str
    href: str | None
    rows: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True)
class ListHead:
    """``sort`` is what ``aria-sort`` says; ``href`` sorts by this column, or turns its order."""

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
    """What was deleted in one go, and the field that brings it back."""

    sentence: str
    until_at: str
    until: str
    moment: str


@dataclass(frozen=True, slots=True)
class RunsPage:
    """``/``"""

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
    href: str | None = None  # on another site


@dataclass(frozen=True, slots=True)
class RunChoice:
    id: str
    label: str


@dataclass(frozen=True, slots=True)
class Channel:
    """Where alerts go; ``status`` is the one whose colour and shape it wears."""

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
    listens: bool  # a process may be there to ask
    unit: str
    progress: str
    done: int
    planned: int | None
    started_at: str
    started: str
    seen_at: str
    seen: str
    quiet_seconds: float  # since it was heard of, when the page was made
    started_seconds: float
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
    previous: RunChoice | None  # of its project, to compare it with
    here: str  # its address as it is shown, which forms lead back to
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Tab:
    """Without sections it is not open; ``note`` says why to look into it."""

    id: str
    title: str
    href: str
    chosen: bool
    note: str
    sections: tuple[Section, ...]
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPage:
    """``/runs/{run}``, and its fragments for the live page.

    ``title`` and ``icon``, an address, carry the state to the tab of the browser.
    """

    title: str
    icon: str
    run: RunHead
    verdict: VerdictView
    facts: tuple[Tile, ...]
    findings: tuple[FindingView, ...]
    findings_title: str
    memory: Section
    changes: RangeChanges | None  # nothing where there are no two points yet
    phases: tuple[Bar, ...]
    phases_note: str
    processes: tuple[Bar, ...]
    more_processes: tuple[Bar, ...]
    left_out: str
    asked: tuple[tuple[str, str], ...]  # what the address keeps when another tab is opened
    tabs: tuple[Tab, ...]


@dataclass(frozen=True, slots=True)
class ChangesFragment:
    """What changes on the page of a run when its viewer chooses a stretch; ``types`` where that tab is open."""

    changes: RangeChanges | None
    types: Section | None


@dataclass(frozen=True, slots=True)
class PickPage:
    """``/compare`` before two runs are chosen. ``choices``: those that ``query`` finds, and those chosen already."""

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
    """Any page that is not there."""

    title: str
    status_code: int
    message: str
