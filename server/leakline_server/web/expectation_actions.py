"""Counts that people accept and take back: the same from the page of a run and from the API."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from leakline.analysis.contracts import stands_for
from leakline.analysis.history import Expectation
from leakline.analysis.results import to_json

from ..errors import Conflict, InvalidField, NotFound, run_not_found, shorten
from ..limits import MAX_ACCEPTED_COUNTS
from ..store import assertions, runs
from .pages import known_run
from .services import Services


def get(use: Services, run_id: str) -> dict[str, Any]:
    """What is expected of the run, what it keeps to, and what stands in its project. Raises NotFound."""
    run = known_run(use, run_id)
    derived = use.derived.of(run_id)
    return {
        "items": to_json(derived.expectations),
        "steady": to_json(derived.steady),
        "accepted": [_told(each) for each in assertions.accepted_in(use.engine, run["project"])],
        "next": None,
    }


def accept(use: Services, run_id: str, wanted: Expectation) -> None:
    """Raises NotFound, InvalidField and Conflict."""
    run = known_run(use, run_id)
    _check(run, wanted)
    try:
        concerned = assertions.accept(use.engine, run_id, wanted, time.time())
    except assertions.TooManyAcceptedCounts as error:
        raise Conflict(
            "too_many_accepted_counts",
            f"project {shorten(run['project'])} has {MAX_ACCEPTED_COUNTS} accepted counts, as many as it may; "
            "take some back first",
            {"project": shorten(run["project"]), "limit": MAX_ACCEPTED_COUNTS},
        ) from error
    _tell(use, run_id, concerned)


def take_back(use: Services, run_id: str, name: str, after: str | None) -> None:
    """Raises NotFound where nothing of the kind was accepted."""
    concerned = assertions.take_back(use.engine, run_id, name, after, time.time())
    if concerned == []:
        where = "" if after is None else f" after {shorten(after)}"
        raise NotFound(
            "nothing_to_take_back",
            f"no count of {shorten(name)}{where} is accepted in the project of run {shorten(run_id)}",
            {"run": shorten(run_id), "type": shorten(name), "after": shorten(after)},
        )
    _tell(use, run_id, concerned)


def _check(run: dict[str, Any], wanted: Expectation) -> None:
    if f"type.{wanted.type}.count" not in run["series"]:
        raise InvalidField(
            "type",
            wanted.type,
            "this run has not counted it; GET /api/v1/runs/{run}/types lists what it has",
        )
    phases = (*run["phases"], *run["phases_seen"])
    after = wanted.after
    if after is not None and not any(p == after or p.endswith(f"/{after}") for p in phases):
        raise InvalidField("after", after, f"must be a phase of the run: {_some(phases)}")
    if any(not e["accepted"] and stands_for(e["type"], wanted.type) for e in run["expectations"]):
        raise Conflict(
            "count_is_declared",
            f"the program declares how many {shorten(wanted.type)} there are, and that counts: change run.expect there",
            {"run": run["id"], "type": shorten(wanted.type)},
        )


def _some(phases: Iterable[str]) -> str:
    return ", ".join(list(dict.fromkeys(phases))[:10]) or "it has none"


def _tell(use: Services, run_id: str, concerned: list[str] | None) -> None:
    if concerned is None:
        raise run_not_found(run_id)
    for each in concerned:
        use.live.wake(each)
        use.examine(each, False)
    # Who accepted it sees it at once, however long the run is.
    use.derived.of(run_id)


def _told(each: assertions.AcceptedCount) -> dict[str, Any]:
    told = asdict(each.expectation)
    del told["accepted"]
    return told | {"run": each.run, "created_at": runs.iso(each.created_at)}
