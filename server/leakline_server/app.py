"""The application: wires all packages together, and starts and stops the workers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from . import logs
from .config import Config
from .ingest.writer import Writer
from .live_updates import Live, Watcher
from .paths import MIGRATIONS, STATIC
from .run_requests import Requests
from .security.credentials import hash_password, is_password
from .store import access
from .store.alerts.assertions import take_file
from .store.engine import DATABASE_ERRORS, Engine, open_engine
from .store.maintenance import corruption_scan, disk_space, quarantine
from .store.migrate import upgrade
from .store.series import Key
from .web import docs as documents
from .web import errors, event_stream, openapi
from .web import metrics as metrics
from .web import overlay as overlay_pages
from .web import settings as settings_pages
from .web import token_routes as tokens_api
from .web import webhook_api as webhooks_api
from .web.alerts import pages as alert_pages
from .web.auth import pages as sign_in_pages
from .web.auth.authenticator import Callers
from .web.auth.middleware import AuthMiddleware, Guard
from .web.auth.permissions import OPEN
from .web.derived_analysis import Derivations
from .web.expectations import api as expectations_api
from .web.export import api as export_api
from .web.export import pages as report_pages
from .web.incidents import api as incidents_api
from .web.ingest import otlp_api
from .web.ingest.api import PATH, Ingest
from .web.ingest.otlp_streams import Streams
from .web.metrics import Metrics
from .web.rendering.templating import RevalidatedFiles
from .web.responses import CompressionMiddleware, completing
from .web.rules import api as rules_api
from .web.run_page import pages
from .web.runs import api as read_api
from .web.runs import pages as runs_pages
from .web.runs import series_api
from .web.services import Services
from .worker_thread import Worker
from .workers.analysis_process import Apart
from .workers.delivery_worker import Deliverer
from .workers.examination import Looking
from .workers.examination_worker import Examiner, Wakes
from .workers.storage_upkeep import Compactor, Retainer, Sealer

DESCRIPTION = (
    "Live memory telemetry for training runs: where it leaks, what, how much, and since when."
)

# This level compresses a 400 kB page to a sixth in 6 ms; level 9 takes three times as long to save another 3 %.
COMPRESSION: Final = 5

log = logging.getLogger("leakline")


def create_app(config: Config, *, looks_apart: bool = False) -> FastAPI:
    """Create the application and upgrade its database. If ``looks_apart`` is True, the analysis runs in a separate
    process and does not delay batches.

    Raises BadDatabaseUrl, NewerDatabase, TooManyRules or one of DATABASE_ERRORS, each with a message for users. The
    workers run during the application's lifespan.
    """
    engine = open_engine(config.database_url, config.synchronous)
    upgrade(engine, MIGRATIONS)
    quarantine.set_aside(engine)
    corruption_scan.inspect(engine)
    _take_rules(engine, config)
    access.take_password(engine, config.admin_password, hash_password, is_password)
    rooms = _Rooms(config, engine, looks_apart)
    app = _Application(
        title="Leakline",
        description=DESCRIPTION,
        version=version("leakline"),
        # FastAPI's own route has no declared responses, and its pages load scripts from another host.
        openapi_url=None,
        lifespan=rooms.lifespan,
        # Many clients drop the body when a POST is redirected; a 404 is clearer.
        redirect_slashes=False,
    )
    app.state.services = rooms.services
    app.state.metrics = Metrics()
    app.state.metrics.attach(rooms.services)
    app.state.otlp = Streams()
    authentication = (config, rooms.services.callers, engine, pages.error_page)
    app.ingest = Ingest(
        rooms.services, app.state.metrics, Guard(app, config), AuthMiddleware(app, *authentication)
    )
    # Routes are tried in order, and most requests go to this route.
    app.router.routes.insert(0, Route(PATH, app.ingest, methods=["POST"]))
    for router in (
        event_stream.router,
        read_api.router,
        series_api.router,
        export_api.router,
        read_api.health,
        expectations_api.router,
        incidents_api.router,
        rules_api.router,
        webhooks_api.router,
        tokens_api.router,
        metrics.router,
        otlp_api.router,
        runs_pages.router,
        overlay_pages.router,
        pages.router,
        tokens_api.links,
        expectations_api.pages,
        report_pages.router,
        incidents_api.pages,
        alert_pages.router,
        rules_api.pages,
        settings_pages.router,
        sign_in_pages.router,
        documents.router,
        openapi.router,
    ):
        # `include_router` would rebuild every route and its models for each application, at the first request.
        app.router.routes.extend(router.routes)
    files = RevalidatedFiles(directory=STATIC)
    files.dependencies = (OPEN,)
    app.mount("/static", files)
    errors.install(app, pages.error_page)
    openapi.install(app)
    # This middleware is innermost, so that refusals are compressed and get CORS headers like any other response.
    app.add_middleware(AuthMiddleware, *authentication)
    app.add_middleware(
        CompressionMiddleware,
        compresslevel=COMPRESSION,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, export_api.PARQUET),
    )
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["content-type", "content-encoding", "authorization"],
            expose_headers=["retry-after"],
        )
    # This middleware is outermost, so that requests from foreign hosts and origins are refused before anything is read.
    app.add_middleware(Guard, config=config)
    app.logged = logs.RequestLog(app.answer) if logs.logs_requests() else app.answer
    return app


def _take_rules(engine: Engine, config: Config) -> None:
    """Store the rules from the settings. If the disk is full, keep the previously stored rules, so that the server can
    still serve reads.
    """
    try:
        take_file(engine, config.rules, time.time())
    except DATABASE_ERRORS as error:
        if not disk_space.is_logged(engine, error):
            raise
        log.warning(
            "cannot store the rules from LEAKLINE_RULES: the disk is full; the previous rules stay in force"
        )


class _Application(FastAPI):
    """A FastAPI application that bypasses the framework for batches, which are most of its requests."""

    ingest: Ingest
    logged: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        logs.answering(scope)
        await self.logged(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        run_id = self.ingest.run_of(scope)
        if run_id is None:
            scope[errors.BEGAN] = time.monotonic()
            await super().__call__(scope, receive, completing(scope, send))
        else:
            scope["path_params"] = {"run": run_id}
            try:
                await self.ingest(scope, receive, send)
            except Exception:
                await errors.bug_response()(scope, receive, completing(scope, send))
                # The server logs the error with its traceback.
                raise


class _Rooms:
    """Owns all objects that have a thread or a connection, and starts and stops them in order."""

    def __init__(self, config: Config, engine: Engine, looks_apart: bool) -> None:
        self._engine = engine
        self._apart = apart = Apart(engine, config.priorities) if looks_apart else None
        self._live = Live()
        is_over = partial(quarantine.after, engine)
        self._deliverer = Deliverer(engine, config)
        requests = Requests(engine, has_answers=self._watch_now)
        self._watcher = Watcher(engine, self._live, requests)
        self._watching = Worker("watch", self._watcher.once, is_over)
        wakes = Wakes(self._live.wake, self._deliverer.wake, requests.wanted)
        look = apart or Looking(engine, priorities=config.priorities)
        self._examiner = Examiner(engine, config.silent_after_seconds, wakes, look=look)
        self._examining = Worker("examine", self._examiner.once, is_over, self._examiner.failed)
        self._writer = Writer(engine, self._stored, self._seal, config.bytes_per_day)
        self._sealer = Sealer(engine, self._writer.sealed)
        self._sealing = Worker("seal", self._sealer.once, is_over, self._sealer.failed)
        self._retainer = Retainer(engine, config.limits, self._live.wake)
        self._retaining = Worker("retain", self._retainer.once, is_over)
        self._compactor = Compactor(engine)
        self._compacting = Worker("compact", self._compactor.once, is_over, self._compactor.failed)
        self.services = Services(
            config,
            engine,
            self._live,
            self._writer,
            self._sealer.figures,
            self._examiner.figures,
            Derivations(engine, priorities=config.priorities),
            requests,
            self._examine,
            self._deliverer.wake,
            self._retainer.figures,
            self._retaining.wake,
            self._compactor.figures,
            Callers(engine, config),
            lambda: None if apart is None else apart.pid,
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._live.start()
        # Start the deliverer first: it registers the webhooks, and alerts go only to webhooks already registered.
        self._deliverer.start()
        self._watching.start()
        self._writer.start()
        self._sealing.start()
        self._examining.start()
        self._retaining.start()
        self._compacting.start()
        # The first call of a thread loads parts of anyio, and the first call of numpy.unique loads numpy.ma: 12 ms
        # that the first reader would otherwise wait for.
        await run_in_threadpool(import_module, "numpy.ma")
        try:
            yield
        finally:
            # Workers that write rows stop before the workers that send those rows.
            self._live.close()
            self._retaining.stop()
            self._compacting.stop()
            self._sealing.stop()
            self._writer.stop()
            if self._apart is not None:
                self._apart.close()
            self._examining.stop()
            self._watching.stop()
            self._deliverer.stop()
            self._engine.dispose()

    def _watch_now(self) -> None:
        self._watcher.news()
        self._watching.wake()

    def _seal(self, keys: Sequence[Key]) -> None:
        self._sealer.want(keys)
        self._sealing.wake()

    def _stored(self, run_ids: Collection[str]) -> None:
        # A viewer that subscribes after this line reads the committed data itself.
        for run_id in set(self._live.watched).intersection(run_ids):
            self._live.wake(run_id)
        # A run that is already queued will be examined with the new data as well.
        new = [run_id for run_id in run_ids if self._examiner.news(run_id)]
        if new:
            self._examining.wake()

    def _examine(self, run_id: str, ended: bool) -> None:
        self._examiner.news(run_id, ended=ended)
        self._examining.wake()
