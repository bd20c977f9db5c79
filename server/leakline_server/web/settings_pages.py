"""``/settings``: health, sizes, retention and tokens of this server."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from leakline import __version__

from .. import issuing
from ..limits import MAX_WAITING_BATCHES
from ..paths import MIGRATIONS
from ..store import damage, disk, full_disk, migrate, overview, removal, sizes, tokens
from .callers import calling
from .metrics import Metrics
from .permissions import may
from .services import Services, Use
from .settings_view import Found, settings_page
from .templating import render
from .tokens_view import Issued, TokenForm, TokensSection, tokens_section

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.head("/settings")
@router.get("/settings")
def show_settings(request: Request, use: Use) -> Response:
    return settings_response(request, use, section(use))


def settings_response(
    request: Request, use: Services, shown: TokensSection | None, status: int = 200
) -> Response:
    page = settings_page(_found(use, request.app.state.metrics), shown)
    return render("settings.html", page, status)


def section(
    use: Services, form: TokenForm | None = None, issued: Issued | None = None
) -> TokensSection | None:
    """The tokens; None for who may only read."""
    if not may(calling.get().scope, "change"):
        return None
    items = [issuing.to_json(token) for token in tokens.list_tokens(use.engine)]
    return tokens_section(items, use.callers.asked, form, issued)


def _found(use: Services, metrics: Metrics) -> Found:
    engine = use.engine
    return Found(
        version=__version__,
        config=use.config,
        database=disk.called(engine),
        schema=migrate.current(engine),
        newest_schema=_newest_schema(),
        space=disk.space(engine),
        projects=sizes.projects(engine),
        overview=overview.overview(engine),
        waiting=use.writer.waiting,
        room=MAX_WAITING_BATCHES,
        is_writing=use.writer.alive,
        figures=use.writer.figures,
        disk_is_full=full_disk.is_full(engine),
        refusals=metrics.refusals(),
        damaged=damage.count(engine),
        removals=removal.waiting(engine),
        retainer=use.retainer,
    )


@cache
def _newest_schema() -> str:
    return migrate.revisions(MIGRATIONS)[-1]
