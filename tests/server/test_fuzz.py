"""Thousands of bodies that are almost right: each is stored or refused, and what is stored can be read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(
        ["\x00", "__proto__", "process.rss_bytes", "../..", "phase_end", "'; --", "=1+1"]
    ),
)
anything = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)
ANSWERS = {200, 400, 404, 409, 422}


def places(thing: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON value."""
    found = [path] if path else []
    keys = (
        thing.keys()
        if isinstance(thing, dict)
        else range(len(thing))
        if isinstance(thing, list)
        else ()
    )
    for key in keys:
        found += places(thing[key], (*path, key))
    return found


def changed(wire: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        wire = wire[step]
    wire[path[-1]] = value


@pytest.fixture(scope="module")
def api(shared_api: TestClient, make_run: Any) -> TestClient:
    make_run().create(shared_api)
    return shared_api


@pytest.fixture(scope="module")
def right(make_run: Any) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    wire = make_run().wire(30, 4)
    return wire, places(wire)


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_one_or_two_wrong_things_in_a_batch_are_never_our_failure(
    data: st.DataObject, api: TestClient, right: tuple[dict[str, Any], list[tuple[Any, ...]]]
) -> None:
    wire, paths = copy.deepcopy(right[0]), right[1]
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=2)):
        try:
            changed(wire, path, data.draw(anything))
        except (KeyError, TypeError, IndexError):
            # The first change took the place of the second away.
            continue
    answer = api.post("/api/v1/runs/r1/batches", json=wire)
    assert answer.status_code in ANSWERS, answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"code", "message", "details"}


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    header=st.dictionaries(
        st.sampled_from(
            ["id", "project", "name", "unit", "total", "started_at", "phases", "tags", "config"]
        ),
        anything,
    )
)
def test_a_header_of_anything_is_never_our_failure(header: dict[str, Any], api: TestClient) -> None:
    answer = api.post("/api/v1/runs", json=header)
    assert answer.status_code in {200, 201, 400, 409, 422}, answer.text
    if answer.status_code in (200, 201):
        assert api.get(f"/api/v1/runs/{answer.json()['id']}").status_code == 200


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    change=st.dictionaries(
        st.sampled_from(["state", "ended_at", "reason", "tags", "notes", "name", "instance"]),
        anything,
    )
)
def test_a_change_of_anything_is_never_our_failure(change: dict[str, Any], api: TestClient) -> None:
    assert api.patch("/api/v1/runs/r1", json=change).status_code in {200, 400, 422}


def test_what_was_let_in_can_be_read(api: TestClient) -> None:
    for read in (
        "", "/series?name=*", "/series?name=*&x=time&phase=*", "/events", "/verdict", "/books", "/types", "/stores",
        "/large-objects", "/holders", "/snapshots?name=*", "/incidents",
    ):  # fmt: skip
        answer = api.get(f"/api/v1/runs/r1{read}")
        assert answer.status_code == 200, (read, answer.text)
