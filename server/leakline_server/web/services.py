"""What a route may use: put on the application once by `app.py`, read by every route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from ..config import Config
from ..figures import ExaminerFigures
from ..live import Live
from ..requests import Requests
from ..store.engine import Engine
from ..writer import Writer
from .derived import Derivations


@dataclass(frozen=True, slots=True)
class Services:
    config: Config
    engine: Engine
    live: Live
    writer: Writer
    examiner: ExaminerFigures
    derived: Derivations
    requests: Requests
    # Look at this run again; from any thread.
    examine: Callable[[str], None]
    # A delivery may be due; from any thread.
    deliver: Callable[[], None]


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


Use = Annotated[Services, Depends(services)]
