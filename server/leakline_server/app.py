"""The application: the only file that knows all rooms. It starts and stops the workers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .config import Config
from .live import Live
from .paths import MIGRATIONS, STATIC
from .requests import Requests
from .store import disk
from .store.columns import Key
from .store.engine import Engine, open_engine
from .store.migrate import upgrade
from .store.rules import take_file
from .web import (
    alert_pages,
    deletion_pages,
    errors,
    export_api,
    incident_pages,
    incidents_api,
    keeping_api,
    metrics,
    openapi,
    overlay_pages,
    pages,
    patterns_page,
    read_api,
    report_pages,
    rules_api,
    rules_pages,
    runs_pages,
    series_api,
    settings_pages,
    stream,
    webhooks_api,
)
from .web.derived import Derivations
from .web.guard import Guard
from .web.ingest_api import PATH, Hot, IngestRoute
from .web.metrics import Metrics
from .web.services import Services
from .web.static_files import RevalidatedFiles
from .worker import Worker
from .workers.compacting import Compactor
from .workers.deliver import Deliverer
from .workers.examine import Examiner, Wakes
from .workers.retaining import Retainer
from .workers.seal import Sealer
from .workers.watching import Watcher
from .writer import Writer

DESCRIPTION = (
    "Live memory telemetry for training runs: where it leaks, what, how much, and since when."
)

# A page of 400 kB in 6 ms to a sixth; level 9 takes three times as long for 3 % less.
COMPRESSION: Final = 5

log = logging.getLogger("leakline")


def create_app(config: Config) -> FastAPI:
    """The application on its database, which is brought to this version first.

    Raises BadDatabaseUrl, NewerDatabase, TooManyRules, or one of DATABASE_ERRORS: each a sentence for people. Workers
    run from the start of the application's lifespan to its end.
    """
    engine = open_engine(config.database_url, config.synchronous)
    upgrade(engine, MIGRATIONS)
    advice = disk.prepare(engine)
    if advice is not None:
        log.warning(advice)
    take_file(engine, config.rules, time.time())
    rooms = _Rooms(config, engine)
    app = _Application(
        title="Leakline",
        description=DESCRIPTION,
        version=version("leakline"),
        openapi_url="/api/v1/openapi.json",
        # Their pages load scripts from another host.
        docs_url=None,
        redoc_url=None,
        lifespan=rooms.lifespan,
        # A redirected POST loses its body in half of all clients; a wrong address says so instead.
        redirect_slashes=False,
    )
    app.state.services = rooms.services
    app.state.metrics = Metrics()
    app.state.metrics.attach(rooms.services)
    # Before the other routes, which are tried in order.
    app.router.routes.insert(0, Route(PATH, IngestRoute(app.state.metrics), methods=["POST"]))
    for router in (
        stream.router,
        read_api.router,
        series_api.router,
        keeping_api.router,
        export_api.router,
        read_api.health,
        incidents_api.router,
        rules_api.router,
        webhooks_api.router,
        metrics.router,
        runs_pages.router,
        deletion_pages.router,
        overlay_pages.router,
        pages.router,
        report_pages.router,
        incident_pages.router,
        alert_pages.router,
        rules_pages.router,
        settings_pages.router,
        patterns_page.router,
    ):
        # Not included, which makes every route and its models anew for each application, at the first request.
        app.router.routes.extend(router.routes)
    app.mount("/static", RevalidatedFiles(directory=STATIC))
    errors.install(app, pages.error_page)
    openapi.install(app)
    app.add_middleware(
        GZipMiddleware,
        compresslevel=COMPRESSION,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, export_api.PARQUET),
    )
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["content-type", "content-encoding", "authorization"],
        )
    # Outermost: what may not be here at all is not even read.
    app.add_middleware(Guard, config=config)
    app.hot = Hot(rooms.services, app.state.metrics, Guard(app, config))
    return app


class _Application(FastAPI):
    """Most requests are batches, and those go past the framework."""

    hot: Hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run_id = self.hot.run_of(scope)
        if run_id is None:
            await super().__call__(scope, receive, send)
        else:
            await self.hot.take(run_id, scope, receive, send)


class _Rooms:
    """Everything with a thread or a connection, and the order in which it starts and stops."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._engine = engine
        self._live = Live()
        self._deliverer = Deliverer(engine, config)
        requests = Requests(engine, has_answers=self._watch_now)
        self._watcher = Watcher(engine, self._live, requests)
        self._watching = Worker("watch", self._watcher.once)
        wakes = Wakes(self._live.wake, self._deliverer.wake, requests.wanted)
        self._examiner = Examiner(engine, config.silent_after_seconds, wakes)
        self._examining = Worker("examine", self._examiner.once)
        self._writer = Writer(engine, self._stored, self._seal)
        self._sealer = Sealer(engine, self._writer.sealed)
        self._sealing = Worker("seal", self._sealer.once)
        self._retainer = Retainer(engine, config.limits, self._live.wake)
        self._retaining = Worker("retain", self._retainer.once)
        self._compactor = Compactor(engine)
        self._compacting = Worker("compact", self._compactor.once)
        self.services = Services(
            config,
            engine,
            self._live,
            self._writer,
            self._sealer.figures,
            self._examiner.figures,
            Derivations(engine),
            requests,
            self._examine,
            self._deliverer.wake,
            self._retainer.figures,
            self._retaining.wake,
            self._compactor.figures,
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._live.start()
        # First, because an alert is for the webhooks that are there when it is written.
        self._deliverer.start()
        self._watching.start()
        self._writer.start()
        self._sealing.start()
        self._examining.start()
        self._retaining.start()
        self._compacting.start()
        try:
            yield
        finally:
            # What makes rows stops before what sends from them.
            self._live.close()
            self._retaining.stop()
            self._compacting.stop()
            self._sealing.stop()
            self._writer.stop()
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
        # Whoever begins to watch after this look reads what is committed.
        for run_id in set(self._live.watched).intersection(run_ids):
            self._live.wake(run_id)
        # One that waits already is looked at when its time comes.
        new = [run_id for run_id in run_ids if self._examiner.news(run_id)]
        if new:
            self._examining.wake()

    def _examine(self, run_id: str, ended: bool) -> None:
        self._examiner.news(run_id, ended=ended)
        self._examining.wake()
