"""What a route requires, and whether a scope grants it.

Each router or route declares ``dependencies=[READ]`` (or `OPEN`, `ADD`, `SEE`, `CHANGE`); the last declaration counts,
so that a route overrides its router. A route without one requires an administrator. `middleware.py` enforces the
declaration.

Below: what a token that only adds to one project may say of a run and is shown of it. Others may say and see all.
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

# nothing < see (of one run) < read < change; to add is apart: who adds need not read.
Need = Literal["nothing", "add", "see", "read", "change"]


async def _anybody() -> None:
    """Stand for a route that anybody may use, which OpenAPI describes without a security scheme."""


_TOKEN: Final = HTTPBearer(
    scheme_name="token", description="leakline token create", auto_error=False
)
OPEN: Final = Security(_anybody, scopes=["nothing"])
ADD: Final = Security(_TOKEN, scopes=["add"])
SEE: Final = Security(_TOKEN, scopes=["see"])
READ: Final = Security(_TOKEN, scopes=["read"])
CHANGE: Final = Security(_TOKEN, scopes=["change"])

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# Parameters of paths and queries that name runs.
_NAMED: Final = frozenset({"run", "before", "after", "pick"})
_HAS: Final[dict[Scope, frozenset[Need]]] = {
    "ingest": frozenset({"add"}),
    "read": frozenset({"see", "read"}),
    "admin": frozenset({"add", "see", "read", "change"}),
    "share": frozenset({"see"}),
}


def requirement_of(scope: types.Scope) -> tuple[Need, Mapping[str, str]]:
    """Return what the route of a request requires, and the parameters in its path.

    An address or a method without a route requires what any other of its kind does: to read, or to change something.
    """
    parameters: Mapping[str, str] = {}
    for route in scope["app"].routes:
        match, found = route.matches(scope)
        if match is not Match.NONE:
            parameters = found["path_params"]
        if match is Match.FULL:
            need = declared_by(route) or "change"
            # Files are there to be read; a mount takes every method.
            is_changed = isinstance(route, Mount) and scope["method"] not in READS
            return "change" if is_changed else need, parameters
    return "read" if scope["method"] in READS else "change", parameters


def declared_by(route: Any) -> Need | None:
    """Return what a route or its endpoint declares last; None: nothing."""
    declared = getattr(route, "dependencies", ()) or getattr(route.app, "dependencies", ())
    needs = [
        each.scopes[0] for each in declared if isinstance(each, params.Security) and each.scopes
    ]
    return cast(Need, needs[-1]) if needs else None


def may(scope: Scope, need: Need) -> bool:
    return need == "nothing" or need in _HAS[scope]


def runs_named(parameters: Mapping[str, str], query: str) -> Iterator[str]:
    """Yield the ids of the runs that a request is about."""
    for name, value in (*parameters.items(), *parse_qsl(query)):
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
