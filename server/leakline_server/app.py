"""The application: the only file that knows all rooms. It starts and stops the workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from .config import Config
from .live import Live
from .paths import MIGRATIONS, STATIC
from .requests import Requests
from .store.engine import Engine, open_engine
from .store.migrate import upgrade
from .store.rules import take_file
from .web import (
    alert_pages,
    errors,
    incident_pages,
    incidents_api,
    metrics,
    openapi,
    pages,
    read_api,
    rules_api,
    rules_pages,
    stream,
    webhooks_api,
)
from .web.derived import Derivations
from .web.guard import Guard
from .web.ingest_api import PATH, IngestRoute
from .web.metrics import Metrics
from .web.services import Services
from .web.static_files import RevalidatedFiles
from .worker import Worker
from .workers.deliver import Deliverer
from .workers.examine import Examiner, Wakes
from .writer import Writer

DESCRIPTION = (
    "Live memory telemetry for training runs: where it leaks, what, how much, and since when."
)


def create_app(config: Config) -> FastAPI:
    """The application on its database, which is brought to this version first.

    Raises BadDatabaseUrl, NewerDatabase, TooManyRules, or one of DATABASE_ERRORS: each a sentence for people. Workers
    run from the start of the application's lifespan to its end.
    """
    engine = open_engine(config.database_url, config.synchronous)
    upgrade(engine, MIGRATIONS)
    take_file(engine, config.rules, time.time())
    rooms = _Rooms(config, engine)
    app = FastAPI(
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
    # Before everything else: most requests are batches, and routes are tried in order.
    app.router.routes.insert(0, Route(PATH, IngestRoute(app.state.metrics), methods=["POST"]))
    for router in (
        stream.router,
        read_api.router,
        read_api.health,
        incidents_api.router,
        rules_api.router,
        webhooks_api.router,
        metrics.router,
        pages.router,
        incident_pages.router,
        alert_pages.router,
        rules_pages.router,
    ):
        app.include_router(router)
    app.mount("/static", RevalidatedFiles(directory=STATIC))
    errors.install(app, pages.error_page)
    openapi.install(app)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["content-type", "content-encoding", "authorization"],
        )
    # Outermost: what may not be here at all is not even read.
    app.add_middleware(Guard, config=config)
    return app


class _Rooms:
    """Everything with a thread or a connection, and the order in which it starts and stops."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._engine = engine
        self._live = Live()
        self._deliverer = Deliverer(engine, config)
        requests = Requests()
        wakes = Wakes(self._live.wake, self._deliverer.wake, requests.wanted)
        self._examiner = Examiner(engine, config.silent_after_seconds, wakes)
        self._examining = Worker("examine", self._examiner.once)
        self._writer = Writer(engine, self._stored)
        self.services = Services(
            config,
            engine,
            self._live,
            self._writer,
            self._examiner.figures,
            Derivations(engine),
            requests,
            self._examine,
            self._deliverer.wake,
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        self._live.start()
        # First, because an alert is for the webhooks that are there when it is written.
        self._deliverer.start()
        self._writer.start()
        self._examining.start()
        try:
            yield
        finally:
            # What makes rows stops before what sends from them.
            self._live.close()
            self._writer.stop()
            self._examining.stop()
            self._deliverer.stop()
            self._engine.dispose()

    def _stored(self, run_id: str) -> None:
        self._live.wake(run_id)
        self._examine(run_id)

    def _examine(self, run_id: str) -> None:
        self._examiner.news(run_id)
        self._examining.wake()
