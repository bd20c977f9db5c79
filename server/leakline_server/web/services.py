"""What a route may use: put on the application once by `app.py`, read by every route."""

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
    # A run has news, and whether that is its end; from any thread.
    examine: Callable[[str, bool], None]
    # A delivery may be due; from any thread.
    deliver: Callable[[], None]
    retainer: RetainerFigures
    # A run was removed, its rows may go; from any thread.
    retain: Callable[[], None]
    compactor: CompactorFigures
    # Who asks; where everybody may ask, everybody may everything.
    callers: Callers
    # Of the process that looks at runs for this one, while there is one.
    analysis_pid: Callable[[], int | None]
    coming: Coming = field(default_factory=Coming)
    # Of batches whose check keeps the event loop from everything else.
    checking: Turns = field(default_factory=lambda: Turns(pauses=True))
    # Of requests that begin or change a run: each holds a thread until it has written.
    adding: Turns = field(default_factory=lambda: Turns(at_once=8))
    # Of whoever signs in, whom nobody knows yet: however many send, no batch is kept out.
    signing_in: Coming = field(default_factory=Coming)


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def address_of(request: Request, use: Services) -> str:
    """Where this server is reached: as configured, else as the viewer reached it."""
    return use.config.public_url or str(request.base_url).rstrip("/")


Use = Annotated[Services, Depends(services)]
