"""What people say of a leak: the same from the page and from the API."""

from __future__ import annotations

import time
from typing import Any

from ..errors import InvalidField, NotFound, shorten
from ..store import acknowledgements, incident_groups
from ..store.acknowledgements import Acknowledgement, Kind
from ..store.engine import writing
from .incidents_view import with_sentence
from .services import Services


def get(use: Services, project: str, fingerprint: str) -> dict[str, Any]:
    """The leak as the API gives it. Raises NotFound."""
    found = incident_groups.get_group(use.engine, project, fingerprint, time.time())
    if found is None:
        raise _unknown(project, fingerprint)
    return with_sentence(found)


def say(
    use: Services,
    project: str,
    fingerprint: str,
    kind: Kind,
    reason: str,
    expires_at: float | None = None,
) -> dict[str, Any]:
    """Write it and return the leak as it stands then. Raises NotFound and InvalidField."""
    now = time.time()
    if not reason and kind != "ignored":
        raise InvalidField("reason", reason, "say in a few words why: others will read it")
    if expires_at is not None and expires_at <= now:
        raise InvalidField("expires_at", expires_at, "is over already; give a time to come")
    with writing(use.engine) as connection:
        worst = incident_groups.worst_of(connection, project, fingerprint)
        if worst is None:
            raise _unknown(project, fingerprint)
        said = Acknowledgement(kind, reason, *worst, created_at=now, expires_at=expires_at)
        acknowledgements.say(connection, project, fingerprint, said)
    return get(use, project, fingerprint)


def take_back(use: Services, project: str, fingerprint: str, kind: Kind) -> dict[str, Any]:
    """Raises NotFound where nothing of the kind holds."""
    with writing(use.engine) as connection:
        if not acknowledgements.end(connection, project, fingerprint, kind, time.time()):
            raise NotFound(
                "nothing_to_take_back",
                f"leak {shorten(fingerprint)} of project {shorten(project)} is not {kind}",
                {"project": shorten(project), "fingerprint": shorten(fingerprint)},
            )
    return get(use, project, fingerprint)


def _unknown(project: str, fingerprint: str) -> NotFound:
    return NotFound(
        "incident_not_found",
        f"no run of project {shorten(project)} has an incident {shorten(fingerprint)}; "
        "GET /api/v1/incidents lists them",
        {"project": shorten(project), "fingerprint": shorten(fingerprint)},
    )
