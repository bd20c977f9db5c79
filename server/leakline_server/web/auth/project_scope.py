"""What a token that only adds to one project may say of a run, and is told of it. Others may say and know all."""

from __future__ import annotations

from typing import Any

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
from ...store.ingest.incoming_batch import OtherIdentity
from ...store.runs.run_registration import OtherProcess
from ..api_schemas import RunChanges
from .authenticator import calling


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
    """Who adds to one project alone is not told the values there either, by guessing at them."""
    return project is None


def may_only_add(changes: RunChanges) -> None:
    """It tells how a run goes on and ends, and adds notes. Raises Forbidden for what replaces something."""
    if calling.get().project is not None and (changes.name is not None or changes.tags is not None):
        raise Forbidden(
            "scope_too_small",
            "a token that only adds does not rename or tag: that takes an administrator; "
            "tags are given when the run is created",
        )


def as_told(run: dict[str, Any]) -> dict[str, Any]:
    """A run that was changed; who may not read it is told that it was."""
    if calling.get().project is None:
        return run
    return {"id": run["id"], "state": run["state"], "url": run["url"]}
