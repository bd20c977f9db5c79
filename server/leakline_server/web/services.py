"""The services shared by all routes; `app.py` attaches the services to the application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from ..config import Config
from ..ingest.fair_queue import Turns
from ..ingest.writer import Writer
from ..live_updates import Live
from ..run_requests import Requests
from ..store.engine import Engine
from ..worker_thread import CompactorFigures, ExaminerFigures, RetainerFigures, SealerFigures
from .auth.authenticator import Callers
from .derived_analysis import Derivations
from .request_bodies import Coming


@dataclass(frozen=True, slots=True)
class Services:
    config: Config
    engine: Engine
    live: Live
    writer: Writer
    sealer: SealerFigures
    examiner: ExaminerFigures
    derived: Derivations
    requests: Requests
    # Thread-safe; call this with (run, True if the run has ended) when a run has new data.
    examine: Callable[[str, bool], None]
    # Thread-safe; call this when a delivery may be due.
    deliver: Callable[[], None]
    retainer: RetainerFigures
    # Thread-safe; call this when a run has been removed and its rows can be deleted.
    retain: Callable[[], None]
    compactor: CompactorFigures
    # The authenticator of requests; with authentication off, every request may do everything.
    callers: Callers
    # A function that returns the pid of the analysis process, or None while it is not running.
    analysis_pid: Callable[[], int | None]
    coming: Coming = field(default_factory=Coming)
    # The limiter for batches whose validation blocks the event loop.
    checking: Turns = field(default_factory=lambda: Turns(pauses=True))
    # The limiter for requests that create or change a run: each request holds a thread until its data
    # is written.
    adding: Turns = field(default_factory=lambda: Turns(at_once=8))
    # A separate counter for sign-ins, because these unauthenticated requests must not block batches.
    signing_in: Coming = field(default_factory=Coming)


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def address_of(request: Request, use: Services) -> str:
    """Return the configured URL of the server or, without one, the URL that the viewer used."""
    return use.config.public_url or str(request.base_url).rstrip("/")


Use = Annotated[Services, Depends(services)]
