"""Rules in the API and on the page: made, changed, listed, deleted; what is wrong is refused and named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.store.rules import Terms
from leakline_server.web import rule_schemas

QUEUE = {"name": "Queue", "series": "gauge.queue", "above": 50}
RULES = "/api/v1/rules"


def add(api: TestClient, **given: Any) -> dict[str, Any]:
    answer = api.post(RULES, json={**QUEUE, **given})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def error(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    assert set(found) == {"code", "message", "details"} and "\n" not in found["message"]
    return found


def test_a_rule_is_made_read_changed_and_deleted(api: TestClient) -> None:
    made = add(api, project="erl", above="20 GB", advice="bound it")
    assert made["above"] == 20e9 and made["source"] == "api" and made["firing"] == []
    rule_schemas.Rule.model_validate(made)
    one = f"{RULES}/{made['id']}"
    assert api.get(one).json() == made
    changed = api.patch(one, json={"above": 60, "project": None, "hold": 2}).json()
    assert changed == {**made, "above": 60.0, "project": None, "hold": 2}
    assert api.patch(one, json={}).json() == changed
    assert api.delete(one).status_code == 204
    assert error(api.get(one))["code"] == "rule_not_found"
    assert api.patch(one, json={}).status_code == api.delete(one).status_code == 404


def test_the_list_is_read_in_pages(api: TestClient) -> None:
    numbers = [add(api, name=f"r{n}")["id"] for n in range(5)]
    first = api.get(RULES, params={"limit": 2}).json()
    rest = api.get(RULES, params={"limit": 50, "cursor": first["next"]}).json()
    assert [r["id"] for r in first["items"] + rest["items"]] == numbers
    assert rest["next"] is None
    rule_schemas.Rules.model_validate(first)
    assert error(api.get(RULES, params={"cursor": "x"}))["details"]["field"] == "cursor"
    assert api.get(RULES, params={"cursor": "9" * 19}).status_code == 422


def test_a_preset_makes_its_rules(api: TestClient) -> None:
    bands = api.post(RULES, json={"preset": "tensors", "project": "erl"})
    assert bands.status_code == 201
    assert [r["above"] for r in bands.json()["items"]] == [99.0, 200.0, 500.0]
    rule_schemas.Rules.model_validate(bands.json())
    high = api.post(RULES, json={"preset": "tensors.high", "series": "tfjs.tensors"}).json()
    assert (high["series"], high["above"]) == ("tfjs.tensors", 200.0)
    offered = api.get(f"{RULES}/presets").json()
    rule_schemas.Presets.model_validate(offered)
    for each in offered["items"]:
        assert api.post(RULES, json={"preset": each["preset"], "run": "r1"}).status_code == 201


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"above": None}, "above"),
        ({"above": "lots"}, "above"),
        ({"above": True}, "above"),
        ({"above": 1, "below": 2}, "above"),
        ({"series": None}, "series"),
        ({"series": 5}, "series"),
        ({"series": "x\x00"}, "series"),
        ({"name": "x" * 300}, "name"),
        ({"hold": 0}, "hold"),
        ({"hold": "2"}, "hold"),
        ({"grace": 1.5}, "grace"),
        ({"measure": "mean"}, "measure"),
        ({"measure": "forecast"}, "series"),
        ({"enabled": "yes"}, "enabled"),
        ({"preset": "nothing"}, "preset"),
        ({"threshold": 5}, "threshold"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_made(
    api: TestClient, wrong: dict[str, Any], field: str
) -> None:
    answer = api.post(RULES, json={**QUEUE, **wrong})
    assert answer.status_code == 422
    assert error(answer)["details"]["field"].split(".")[0] == field
    assert api.get(RULES).json()["items"] == []


def test_a_wrong_change_leaves_the_rule_as_it_was(api: TestClient) -> None:
    made = add(api)
    one = f"{RULES}/{made['id']}"
    for wrong in ({"above": None}, {"below": 60}, {"preset": "gpu"}, {"id": 5}, {"measure": "forecast"}):  # fmt: skip
        assert api.patch(one, json=wrong).status_code == 422, wrong
    assert api.get(one).json() == made
    for number in ("0", "x", "9" * 30):
        assert api.get(f"{RULES}/{number}").status_code == 422
    assert api.post(RULES, content=b"{").status_code == 400


def test_a_rule_that_is_there_is_named_instead_of_made_twice(api: TestClient) -> None:
    made = add(api)
    again = api.post(RULES, json=QUEUE)
    assert again.status_code == 409
    assert error(again)["details"] == {"rule": made["id"]}
    other = add(api, name="Other")
    assert api.patch(f"{RULES}/{other['id']}", json={"name": "Queue"}).status_code == 409


@pytest.fixture
def with_file(tmp_path: Path) -> Any:
    config = Config(
        database_url=f"sqlite:///{tmp_path}/x.db", rules=(Terms("Filed", "gauge.queue", above=5.0),)
    )
    with TestClient(create_app(config), base_url="http://127.0.0.1") as client:
        yield client


def test_rules_of_the_file_are_changed_in_the_file(with_file: TestClient) -> None:
    (rule,) = with_file.get(RULES).json()["items"]
    assert rule["source"] == "file"
    one = f"{RULES}/{rule['id']}"
    for answer in (with_file.patch(one, json={"above": 6}), with_file.delete(one)):
        assert answer.status_code == 409
        assert "LEAKLINE_RULES" in error(answer)["message"]
    page = with_file.get("/alerts").text
    assert "Filed" in page and "from the file" in page
    assert f"/alerts/rules/{rule['id']}/delete" not in page
    refused = with_file.post(f"/alerts/rules/{rule['id']}/delete", follow_redirects=False)
    assert refused.status_code == 409 and "LEAKLINE_RULES" in refused.text


def form(api: TestClient, path: str, **fields: str) -> Any:
    return api.post(path, data=fields, follow_redirects=False)


def items(api: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(RULES).json()["items"]
    return found


def test_the_page_makes_changes_pauses_and_deletes_a_rule(api: TestClient) -> None:
    made = form(api, "/alerts/rules", series="gauge.queue", above="500 MiB", hold="2", name="Queue")
    assert made.status_code == 303
    (rule,) = items(api)
    assert made.headers["location"] == f"/alerts#rule-{rule['id']}"
    assert (rule["above"], rule["hold"], rule["grace"], rule["source"]) == (
        500 * 2**20,
        2,
        3,
        "page",
    )
    here = f"/alerts/rules/{rule['id']}"
    changed = form(api, here, series="gauge.queue", below="7.5", grace="1", project="erl")
    assert changed.status_code == 303
    (rule,) = items(api)
    # What was left blank is taken away.
    assert (rule["above"], rule["below"], rule["hold"], rule["project"]) == (None, 7.5, 1, "erl")
    assert rule["name"] == "gauge.queue below 7.5"
    assert form(api, f"{here}/pause").status_code == 303
    assert not items(api)[0]["enabled"] and "paused" in api.get("/alerts").text
    assert form(api, f"{here}/resume").status_code == 303
    assert items(api)[0]["enabled"]
    assert form(api, f"{here}/delete").headers["location"] == "/alerts#rules"
    assert items(api) == []
    assert form(api, f"{here}/delete").status_code == 404


def test_the_page_offers_every_preset(api: TestClient) -> None:
    offered = re.findall(r'name="preset" value="([^"]+)"', api.get("/alerts").text)
    assert len(offered) == len(set(offered)) == 7
    for preset in offered:
        assert form(api, "/alerts/rules", preset=preset, project="erl").status_code == 303
    assert {rule["project"] for rule in items(api)} == {"erl"}
    again = form(api, "/alerts/rules", preset=offered[0], project="erl")
    assert again.status_code == 409 and "says the same" in again.text


def test_a_refused_form_comes_back_as_it_was_sent_with_what_is_wrong(api: TestClient) -> None:
    answer = form(api, "/alerts/rules", series="gauge.queue", above="lots", advice="call me")
    assert answer.status_code == 422
    assert "must be a number, or a size" in answer.text.replace("&#34;", '"')
    assert 'value="lots"' in answer.text and 'value="call me"' in answer.text
    assert items(api) == []
    number = add(api)["id"]
    answer = form(api, f"/alerts/rules/{number}", series="gauge.queue", above="1", hold="none")
    assert answer.status_code == 422
    assert 'value="none"' in answer.text and "whole number from 1" in answer.text
    assert items(api)[0]["above"] == 50.0


def test_what_people_write_is_text_on_the_page(api: TestClient) -> None:
    evil = "<img src=x onerror=alert(1)>"
    add(api, name=evil, advice=evil, project=evil, run=evil, series=evil)
    assert "<img" not in api.get("/alerts").text
    assert "<img" not in form(api, "/alerts/rules", name=evil, series=evil).text


def test_the_page_says_where_a_rule_fires(api: TestClient, make_run: Any, eventually: Any) -> None:
    add(api, name="Classes", series="type.app.Env.count", above=100)
    run = make_run()
    run.create(api)
    run.send(api, 0, 36)
    (firing,) = eventually(lambda: items(api)[0]["firing"])
    assert (firing["run"], firing["project"]) == ("r1", "erl")
    text = api.get("/alerts").text
    assert 'href="/runs/r1"' in text and "erl/before-fix" in text.replace("<wbr>", "")


def test_a_form_of_another_site_changes_nothing(api: TestClient) -> None:
    answer = api.post(
        "/alerts/rules", data={"preset": "gpu"}, headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 403
    assert items(api) == []
