"""Permissions: what each route requires, and what each scope grants.

Each router or route declares ``dependencies=[READ]`` (or `OPEN`, `ADD`, `SEE`, `CHANGE`); the last
declaration counts, so a route overrides its router. A route without a declaration requires an
administrator. `middleware.py` enforces the declaration.

The functions at the end restrict tokens that can only add to one project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, cast
from urllib.parse import parse_qsl

from fastapi import Security, params
from fastapi.security import HTTPBearer
from starlette import types
from starlette.routing import Match, Mount

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

# In ascending order: nothing, see (one run), read, change. A scope that grants one of these needs also
# grants the needs before it. "add" is separate, because an ingest token cannot read.
Need = Literal["nothing", "add", "see", "read", "change"]


async def _anybody() -> None:
    """Mark a route that everyone may use; OpenAPI describes it without a security scheme."""


_TOKEN: Final = HTTPBearer(
    scheme_name="token", description="a token from leakline token create", auto_error=False
)
OPEN: Final = Security(_anybody, scopes=["nothing"])
ADD: Final = Security(_TOKEN, scopes=["add"])
SEE: Final = Security(_TOKEN, scopes=["see"])
READ: Final = Security(_TOKEN, scopes=["read"])
CHANGE: Final = Security(_TOKEN, scopes=["change"])

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# Path and query parameters that contain run ids.
_NAMED: Final = frozenset({"run", "before", "after", "pick"})
_HAS: Final[dict[Scope, frozenset[Need]]] = {
    "ingest": frozenset({"add"}),
    "read": frozenset({"see", "read"}),
    "admin": frozenset({"add", "see", "read", "change"}),
    "share": frozenset({"see"}),
}


def requirement_of(scope: types.Scope) -> tuple[Need, Mapping[str, str]]:
    """Return the permission that a request's route requires, and the path parameters.

    If no route matches, reading methods require "read" and all other methods "change".
    """
    parameters: Mapping[str, str] = {}
    for route in scope["app"].routes:
        match, found = route.matches(scope)
        if match is not Match.NONE:
            parameters = found["path_params"]
        if match is Match.FULL:
            need = declared_by(route) or "change"
            # Files can only be read, but a mount matches every method.
            is_changed = isinstance(route, Mount) and scope["method"] not in READS
            return "change" if is_changed else need, parameters
    return "read" if scope["method"] in READS else "change", parameters


def declared_by(route: Any) -> Need | None:
    """Return the last requirement that a route or its endpoint declares, or None."""
    declared = getattr(route, "dependencies", ()) or getattr(route.app, "dependencies", ())
    needs = [
        each.scopes[0] for each in declared if isinstance(each, params.Security) and each.scopes
    ]
    return cast(Need, needs[-1]) if needs else None


def may(scope: Scope, need: Need) -> bool:
    return need == "nothing" or need in _HAS[scope]


def runs_named(parameters: Mapping[str, str], query: str) -> Iterator[str]:
    """Yield the run ids in the parameters of a request."""
    for name, value in (*parameters.items(), *parse_qsl(query)):
        if name in _NAMED:
            yield value


def project_of(named: str | None, otherwise: str = DEFAULT_PROJECT) -> str:
    """Return ``named``, or the token's project if ``named`` is empty, or ``otherwise`` as the default."""
    return named or calling.get().project or otherwise


def may_add_to(project: str) -> None:
    """Raise NotFound if the token may not add to the project, even if the project exists."""
    own = calling.get().project
    if own not in (None, project):
        raise NotFound(
            "project_not_found",
            f"this token adds to project {own!r}, not to {shorten(project)!r}; use a token of the requested project, "
            f"or start the run with project {own!r}",
            {"project": shorten(project)},
        )


def refusal_to_join(run_id: str, project: str, message: str) -> RequestRefused:
    """Return the error for a run in another project.

    The holder of an ingest token must not learn that the run exists.
    """
    if calling.get().project is not None:
        return run_not_found(run_id)
    return Conflict("run_in_other_project", message, {"run": run_id, "project": project})


def refusal_of_process(found: OtherProcess | OtherIdentity, project: str | None) -> Conflict:
    """Return the error for an instance in use; ``project`` is the ingest token's project, if any."""
    stored = found.stored if reads_what_is_stored(project) else None
    return instance_in_use(found.instance, found.field, stored, found.sent)


def reads_what_is_stored(project: str | None) -> bool:
    """Return False for a token limited to a project; its holder must not learn stored values."""
    return project is None


def may_only_add(changes: RunChanges) -> None:
    """Raise Forbidden if a token that can only add data would replace a run's name or tags."""
    if calling.get().project is not None and (changes.name is not None or changes.tags is not None):
        raise Forbidden(
            "scope_too_small",
            "a token that only adds data cannot rename or tag a run; use an administrator's token, or "
            "give the tags when the run is created",
        )


def as_shown(run: dict[str, Any]) -> dict[str, Any]:
    """Return a changed run, reduced to id, state and URL for tokens that may not read the run."""
    if calling.get().project is None:
        return run
    return {"id": run["id"], "state": run["state"], "url": run["url"]}
