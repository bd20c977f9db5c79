"""The services that routes use; `app.py` sets them on the application, and every route reads them."""

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
    # Call with (run, True if it has ended) when a run has new data; thread-safe.
    examine: Callable[[str, bool], None]
    # Call when a delivery may be due; thread-safe.
    deliver: Callable[[], None]
    retainer: RetainerFigures
    # Call when a run was removed and its rows can be deleted; thread-safe.
    retain: Callable[[], None]
    compactor: CompactorFigures
    # Authenticates requests; with authentication off, every request may do everything.
    callers: Callers
    # Returns the pid of the analysis process, or None while it is not running.
    analysis_pid: Callable[[], int | None]
    coming: Coming = field(default_factory=Coming)
    # Limits the batches whose validation blocks the event loop.
    checking: Turns = field(default_factory=lambda: Turns(pauses=True))
    # Limits the requests that create or change a run: each holds a thread until it has written.
    adding: Turns = field(default_factory=lambda: Turns(at_once=8))
    # Counts sign-ins separately, because these unauthenticated requests must not block batches.
    signing_in: Coming = field(default_factory=Coming)


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def address_of(request: Request, use: Services) -> str:
    """Return the URL of the server: the configured one, or else the one that the viewer used."""
    return use.config.public_url or str(request.base_url).rstrip("/")


Use = Annotated[Services, Depends(services)]
