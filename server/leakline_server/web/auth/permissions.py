"""What a request needs, and whether a scope has it. By default no: a new route needs an administrator, or to read where
it only reads. A test names every route with what it needs.

Below: what a token that only adds to one project may say of a run and is shown of it. Others may say and see all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

from leakline.snapshot import DEFAULT_PROJECT

from ...errors import (
    Conflict,
    Forbidden,
    NotFound,
    RequestRefused,
    instance_in_use,
    run_not_found,
    shorten,
)
from ...security.credentials import Scope
from ...store.ingest.incoming_batch import OtherIdentity
from ...store.runs.run_registration import OtherProcess
from ..api_schemas import RunChanges
from .authenticator import calling

# nothing < read < change; to add is apart: who adds need not read.
Need = Literal["nothing", "add", "read", "change"]

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_OPEN: Final = frozenset({SIGN_IN, "/healthz", "/readyz"})
_RUNS: Final = "/api/v1/runs"
_OTLP: Final = "/v1/metrics"
_TOKENS: Final = "/api/v1/tokens"
_RUN: Final = re.compile(r"(?:/api/v1)?/runs/([^/]+)(?:/.*)?", re.DOTALL)
_CHANGED: Final = re.compile(r"/api/v1/runs/[^/]+", re.DOTALL)
_BATCHES: Final = re.compile(r"/api/v1/runs/[^/]+/batches", re.DOTALL)
# Where an address names runs after its question mark.
_NAMED: Final = frozenset({"run", "before", "after", "pick"})
_HAS: Final[dict[Scope, frozenset[Need]]] = {
    "ingest": frozenset({"add"}),
    "read": frozenset({"read"}),
    "admin": frozenset({"add", "read", "change"}),
}


def need_of(method: str, path: str) -> Need:
    if method in READS:
        return _need_to_read(path)
    if method == "POST":
        if path in (SIGN_IN, SIGN_OUT):
            return "nothing"
        if path in (_RUNS, _OTLP) or _BATCHES.fullmatch(path):
            return "add"
    if method == "PATCH" and _CHANGED.fullmatch(path):
        return "add"
    return "change"


def _need_to_read(path: str) -> Need:
    if path in _OPEN or path.startswith("/static/"):
        return "nothing"
    # How tokens begin, what they are for and when they were used last is nobody else's business.
    if path == _TOKENS or path.startswith(f"{_TOKENS}/"):
        return "change"
    return "read"


def may(scope: Scope, need: Need) -> bool:
    return need == "nothing" or need in _HAS[scope]


def runs_named(path: str, query: str) -> Iterator[str]:
    """The ids of runs that a request is about."""
    found = _RUN.fullmatch(path)
    if found is not None:
        yield found[1]
    for name, value in parse_qsl(query):
        if name in _NAMED:
            yield value


def project_of(named: str | None, otherwise: str = DEFAULT_PROJECT) -> str:
    """Who names no project means the only one there is; ``otherwise``: where there are others."""
    return named or calling.get().project or otherwise


def may_add_to(project: str) -> None:
    """Raises NotFound, whether there is such a project or not."""
    own = calling.get().project
    if own not in (None, project):
        raise NotFound(
            "project_not_found",
            f"this token adds to project {own!r} and knows no {shorten(project)!r}; set LEAKLINE_PROJECT={own}, "
            "or use a token of that project",
            {"project": shorten(project)},
        )


def refusal_to_join(run_id: str, project: str, message: str) -> RequestRefused:
    """Of a run that is in another project, which who may only add does not hear of."""
    if calling.get().project is not None:
        return run_not_found(run_id)
    return Conflict("run_in_other_project", message, {"run": run_id, "project": project})


def refusal_of_process(found: OtherProcess | OtherIdentity, project: str | None) -> Conflict:
    """``project``: the only one that whoever asks adds to."""
    stored = found.stored if reads_what_is_stored(project) else None
    return instance_in_use(found.instance, found.field, stored, found.sent)


def reads_what_is_stored(project: str | None) -> bool:
    """A principal that may only add to one project cannot learn the values there by guessing at them."""
    return project is None


def may_only_add(changes: RunChanges) -> None:
    """It says how a run goes on and ends, and adds notes. Raises Forbidden for what replaces something."""
    if calling.get().project is not None and (changes.name is not None or changes.tags is not None):
        raise Forbidden(
            "scope_too_small",
            "a token that only adds does not rename or tag: that takes an administrator; "
            "tags are given when the run is created",
        )


def as_shown(run: dict[str, Any]) -> dict[str, Any]:
    """A run that was changed; who may not read it learns only that it was."""
    if calling.get().project is None:
        return run
    return {"id": run["id"], "state": run["state"], "url": run["url"]}
