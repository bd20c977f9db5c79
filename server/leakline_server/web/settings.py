"""``/settings``: health, sizes, retention and tokens of this server, and the forms for tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from leakline import __version__
from leakline.text_format import count_of, plural

from ..config import Config, is_loopback
from ..errors import InvalidField, RequestRefused
from ..limits import MAX_WAITING_BATCHES
from ..paths import MIGRATIONS
from ..security import token_issuing
from ..security.credentials import Scope
from ..security.token_issuing import Wish, only_where_asked
from ..store import access, migrate
from ..store.maintenance import corruption, disk_space, run_deletion, storage_sizes
from ..store.maintenance.disk_space import Space
from ..store.maintenance.retention_policy import PerProject
from ..store.maintenance.storage_sizes import Overview, ProjectSize
from ..worker_thread import RetainerFigures, WriterFigures
from . import token_routes as tokens_api
from .api_schemas import RowId
from .auth.authenticator import calling
from .auth.permissions import CHANGE, READ, may
from .metrics import Metrics
from .rendering import number_formats
from .rendering.page_contexts import Cell, Section, Tick, Tile
from .rendering.table_cells import Field, code, table
from .rendering.templating import render
from .request_bodies import Form
from .search_query import search_for
from .services import Services, Use
from .token_routes import (
    DEFAULT_EXPIRY,
    EXPIRIES,
    Issued,
    TokenForm,
    TokensSection,
    issued_text,
    tokens_section,
)

# The error code of status 429, for batches refused because too many were waiting.
TOO_BUSY: Final = "too_busy"
MAX_PROJECTS: Final = 200


@dataclass(frozen=True, slots=True)
class Found:
    """The data on the page. Counts begin at server start; ``refusals`` maps error codes to counts."""

    version: str
    config: Config
    database: tuple[str, str]
    schema: str | None
    newest_schema: str
    space: Space
    projects: Sequence[ProjectSize]
    overview: Overview
    waiting: int
    room: int
    is_writing: bool
    figures: WriterFigures
    disk_is_full: bool
    refusals: Mapping[str, int]
    damaged: int
    removals: int
    retainer: RetainerFigures

    @property
    def too_busy(self) -> int:
        return self.refusals.get(TOO_BUSY, 0)

    @property
    def is_postgres(self) -> bool:
        return self.database[0] == "Postgres"


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """The template context of ``/settings``."""

    title: str
    tiles: tuple[Tile, ...]
    ticks: tuple[Tick, ...]
    sections: tuple[Section, ...]
    # None for principals who may only read.
    tokens: TokensSection | None


def settings_page(found: Found, tokens: TokensSection | None = None) -> SettingsPage:
    config = found.config
    return SettingsPage(
        title="Settings",
        tiles=_tiles(found),
        ticks=(
            _writing(found), _fast_enough(found), _schema(found), _readable(found), _returned(found), _reach(config),
        ),
        sections=(_projects(found), _retention(config, found.retainer)),
        tokens=tokens,
    )  # fmt: skip


def _tiles(found: Found) -> tuple[Tile, ...]:
    kind, name = found.database
    alive = count_of(found.overview.live_processes, "process")
    runs, projects = sum(each.runs for each in found.projects), len(found.projects)
    free = (
        "free space not known"
        if found.is_postgres
        else f"{number_formats.size(found.space.free)} unused"
    )
    return (
        Tile("VERSION", found.version, f"at {found.config.address}", "#health"),
        Tile("DATABASE", kind, name, "#health"),
        Tile("ON DISK", number_formats.size(found.space.bytes), free, "#projects"),
        Tile("RUNNING", count_of(found.overview.running_runs, "run"), f"{alive} alive", "#health"),
        Tile("STORED", count_of(runs, "run"), f"in {count_of(projects, 'project')}", "#projects"),
    )


def _tick(question: str, word: str, status: str, sentence: str) -> Tick:
    return Tick(question, word, status, status, sentence)


def _writing(found: Found) -> Tick:
    question, figures = "Are batches written?", found.figures
    if not found.is_writing:
        said = "The writer thread has stopped. Restart the server."
        return _tick(question, "no", "confirmed", said)
    if found.disk_is_full:
        said = (
            "The disk is full: batches are refused until there is space, and clients will send "
            "them again. Stored data can still be read."
        )
        return _tick(question, "no", "confirmed", said)
    if figures.refused:
        said = (
            "The database rejects writes: batches are refused until writes succeed, and clients will "
            "send them again. The log has the reason."
        )
        return _tick(question, "no", "confirmed", said)
    if figures.failures:
        said = f"{count_of(figures.failures, 'transaction')} failed since the server started; the log has the reasons."
        return _tick(question, "not always", "suspected", said)
    if not figures.commits:
        return _tick(
            question, "nothing yet", "learning", "No batch has arrived since the server started."
        )
    each = number_formats.seconds(figures.commit_seconds / figures.commits)
    said = f"{count_of(figures.commits, 'transaction')} since the server started, none failed; {each} each on average."
    return _tick(question, "yes", "ok", said)


def _fast_enough(found: Found) -> Tick:
    question = "Is the server fast enough?"
    waiting = f"{number_formats.count(found.waiting)} of at most {count_of(found.room, 'batch')} are waiting"
    if found.too_busy:
        refused = count_of(found.too_busy, "batch")
        said = f"{refused} rejected with status 429 since the server started; clients send them again. Now, {waiting}."
        return _tick(question, "not always", "watch", said)
    said = f"No batch was rejected with status 429 since the server started. Now, {waiting}."
    return _tick(question, "yes", "ok", said)


def _schema(found: Found) -> Tick:
    question, schema = "Does the database schema match this version?", found.schema or "unknown"
    if schema == found.newest_schema:
        return _tick(question, "yes", "ok", f"The schema is {schema}, the newest version.")
    said = f"The schema is {schema}, but this version expects {found.newest_schema}. Restart the server."
    return _tick(question, "no", "confirmed", said)


def _readable(found: Found) -> Tick:
    question = "Is all stored data readable?"
    if found.damaged:
        pieces = count_of(found.damaged, "piece")
        said = (
            f"{pieces} of stored data cannot be read. The log names each piece; if possible, restore "
            "the database from a backup."
        )
        return _tick(question, "no", "confirmed", said)
    said = "No damage has been found since the server started. Data is checked only when it is requested."
    return _tick(question, "as far as known", "ok", said)


def _returned(found: Found) -> Tick:
    question = "Is free space returned to the disk?"
    left = (
        f" Still to be deleted: {count_of(found.removals, 'removed run')}."
        if found.removals
        else ""
    )
    if found.is_postgres:
        said = "Postgres reuses free space (autovacuum), and returns only part of it to the disk."
        return _tick(question, "by Postgres", "ok", f"{said}{left}")
    if found.space.returns:
        said = f"The file shrinks automatically; {number_formats.size(found.space.free)} of it is free now."
        return _tick(question, "yes", "ok", f"{said}{left}")
    said = (
        "The file was created without auto_vacuum: stop the server, then run PRAGMA auto_vacuum=2 "
        "and VACUUM on the file."
    )
    return _tick(question, "no", "watch", f"{said}{left}")


def _reach(config: Config) -> Tick:
    question = "Who can reach this server?"
    if config.asks_who_it_is:
        where = "other machines" if not is_loopback(config.host) else "this machine"
        said = f"The server listens on {config.host} with authentication on: every request needs a token or a session."
        return _tick(question, f"{where}, with a login", "ok", said)
    if not is_loopback(config.host):
        said = (
            f"The server listens on {config.host} with authentication off (LEAKLINE_INSECURE): anyone "
            f"who can reach port {config.port} can read and change everything, unless a proxy in "
            "front of it authenticates them."
        )
        return _tick(question, "other machines", "suspected", said)
    said = f"The server listens on {config.host} only, with authentication off: programs on this machine can reach it."
    if config.asks_nobody_of_the_public:
        said += (
            " People reach the server through LEAKLINE_PUBLIC_URL, so a proxy in front of it must "
            "authenticate them; LEAKLINE_LOGIN=1 turns on the server's own authentication."
        )
        return _tick(question, "everyone the proxy admits", "watch", said)
    if config.insecure:
        said += " The server accepts any host name (LEAKLINE_INSECURE)."
        return _tick(question, "this machine", "watch", said)
    return _tick(question, "this machine", "ok", said)


def _projects(found: Found) -> Section:
    largest = sorted(found.projects, key=lambda project: (-project.bytes, project.name))
    how = (
        "Packed size of each project's runs, updated within a minute of new data. Keys, "
        "indexes and free space are extra: the entire database takes "
        f"{number_formats.size(found.space.bytes)}."
    )
    if not largest:
        return Section("projects", "Size on disk", how, empty="There are no projects yet.")
    note = (
        f"Only the {MAX_PROJECTS} largest projects are shown."
        if len(largest) > MAX_PROJECTS
        else ""
    )
    whole = ProjectSize("all", sum(p.runs for p in largest), sum(p.bytes for p in largest))
    shown = table(
        ("project", "#runs", "#size"),
        [_project(each) for each in largest[:MAX_PROJECTS]],
        sums=("all", number_formats.count(whole.runs), _size(whole)),
    )
    return Section("projects", "Size on disk", how, table=shown, note=note)


def _project(project: ProjectSize) -> Sequence[Field]:
    href = search_for(project.name, "project")
    return Cell(project.name, href=href), number_formats.count(project.runs), _size(project)


def _size(project: ProjectSize) -> Cell:
    # Everything stored takes space, so 0 means that the project has not been measured yet.
    if not project.bytes:
        return Cell("not measured yet", absent=True)
    return Cell(number_formats.size(project.bytes))


def _retention(config: Config, done: RetainerFigures) -> Section:
    how = (
        "Nothing is removed unless one of these settings requires it. Runs that are live or tagged "
        "keep or baseline are never removed. To change a setting, set the variable in the server's "
        "environment and restart the server."
    )
    note = (
        f"Since the server started: {count_of(done.removed_runs, 'run')} removed, "
        f"{count_of(done.thinned_snapshots, 'snapshot')} thinned out of old runs."
    )
    rows = (
        (code("LEAKLINE_KEEP_DAYS"), _limits(config.keep_days, _days, "forever"),
         "how long runs are kept after their last message"),
        (code("LEAKLINE_THIN_AFTER_DAYS"), _limits(config.thin_after_days, _days, "never"),
         "when an ended run keeps only its generation ends and extremes"),
        (code("LEAKLINE_KEEP_BYTES"), _limits(config.keep_bytes, number_formats.size, "no limit"),
         "the largest size of a project, above which its oldest runs are removed"),
    )  # fmt: skip
    shown = table(("setting", "in force", "what it does"), rows, tall=False)
    return Section("retention", "Retention", how, table=shown, note=note)


def _limits(limits: PerProject, write: Callable[[float], str], without: str) -> str:
    found = [("", limits.default), *sorted(limits.projects.items())]
    return "; ".join(
        f"{name}{': ' if name else ''}{without if limit is None else write(limit)}"
        for name, limit in found
    )


def _days(days: float) -> str:
    return f"{number_formats.count(days)} {plural('day', days)}"


router = APIRouter(
    include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ]
)


@router.head("/settings")
@router.get("/settings")
def show_settings(request: Request, use: Use) -> Response:
    return _response(request, use, _section(use))


@router.post("/settings/tokens", dependencies=[CHANGE])
def issue_token(request: Request, form: Form, use: Use) -> Response:
    only_where_asked(use.callers.asked)
    sent = TokenForm(
        form.get("scope", "ingest"),
        form.get("project", ""),
        form.get("name", "")[:80],
        form.get("expires", DEFAULT_EXPIRY),
        "browser" in form,
    )
    try:
        token, secret = token_issuing.issue(use.engine, _wish(sent), time.time())
    except RequestRefused as error:
        said = error.message.partition(": ")[2] if isinstance(error, InvalidField) else ""
        wrong = TokenForm(
            sent.scope, sent.project, sent.name, sent.expires, sent.browser, said or error.message
        )
        return _response(request, use, _section(use, form=wrong), error.status)
    made = Issued(issued_text(token_issuing.to_json(token)), secret)
    response = _response(request, use, _section(use, issued=made))
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post("/settings/tokens/{token}/revoke", dependencies=[CHANGE])
def revoke_token(token: RowId, use: Use) -> Response:
    tokens_api.revoke_token(token, use)
    return RedirectResponse("/settings#tokens", 303)


def _response(
    request: Request, use: Services, shown: TokensSection | None, status: int = 200
) -> Response:
    page = settings_page(_found(use, request.app.state.metrics), shown)
    return render("settings.html", page, status)


def _section(
    use: Services, form: TokenForm | None = None, issued: Issued | None = None
) -> TokensSection | None:
    """Return the section of tokens, or None for principals who may only read."""
    if not may(calling.get().scope, "change"):
        return None
    items = [token_issuing.to_json(token) for token in access.list_tokens(use.engine)]
    return tokens_section(items, use.callers.asked, form, issued)


def _wish(sent: TokenForm) -> Wish:
    if sent.expires not in dict(EXPIRIES):
        raise InvalidField("expires", sent.expires, "must be one of the choices on the page")
    days = None if sent.expires == "never" else float(sent.expires)
    return Wish(cast(Scope, sent.scope), sent.project or None, sent.name, days, sent.browser)


def _found(use: Services, metrics: Metrics) -> Found:
    engine = use.engine
    return Found(
        version=__version__,
        config=use.config,
        database=disk_space.called(engine),
        schema=migrate.current(engine),
        newest_schema=_newest_schema(),
        space=disk_space.space(engine),
        projects=storage_sizes.projects(engine),
        overview=storage_sizes.overview(engine),
        waiting=use.writer.waiting,
        room=MAX_WAITING_BATCHES,
        is_writing=use.writer.alive,
        figures=use.writer.figures,
        disk_is_full=disk_space.is_full(engine),
        refusals=metrics.refusals(),
        damaged=corruption.count(engine),
        removals=run_deletion.waiting(engine),
        retainer=use.retainer,
    )


@cache
def _newest_schema() -> str:
    return migrate.revisions(MIGRATIONS)[-1]
