"""The same leak over all runs: where it was seen and how people acknowledged it, on the page and in the API."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.server.stored import engine_of, save_verdict

from leakline.analysis.results import Finding, Interval, Suspect, Verdict
from leakline.snapshot import RunHeader
from leakline_server.store import incident_groups
from leakline_server.store.incident_groups import MAX_RUNS
from leakline_server.store.runs import run_registration
from leakline_server.web.incidents import api as incidents_api
from leakline_server.web.rendering.table_cells import with_links

MIB = 2.0**20
PATH = "/api/v1/incidents"


def finding(status: Any = "confirmed", fingerprint: str = "f1", **more: Any) -> Finding:
    growth = Interval(7 * MIB, 6 * MIB, 8 * MIB)
    suspects = (Suspect("trading.Env", "type", 16.0),)
    values: dict[str, Any] = {"evidence": ("16 Env",), "advice": ("Clear the list.",), **more}
    return Finding(
        fingerprint, status, "objects", "evaluate", 0.9, suspects, growth, None, 0.9, **values
    )


# The application's own examiner would find nothing in runs without snapshots.
pytestmark = pytest.mark.usefixtures("standing_back")
Plant = Callable[..., None]


@pytest.fixture
def plant(api: TestClient) -> Plant:
    """Return a function that saves a run that began ``ago`` seconds ago, with these findings."""
    engine = engine_of(api)

    def write(
        run: str, *found: Finding, project: str = "erl", name: str | None = None, ago: float = 600.0
    ) -> None:
        now = time.time()
        header = RunHeader(run, project, name or run, "generation", None, now - ago)
        run_registration.join_run(engine, header, now)
        growth = Interval(7 * MIB, 6 * MIB, 8 * MIB)
        verdict = Verdict(run, "generation", 9, "confirmed", f"{run} leaks", growth, 0.9, found)
        save_verdict(engine, verdict, now)

    return write


def listed(api: TestClient, **wanted: Any) -> list[dict[str, Any]]:
    answer = api.get(PATH, params=wanted)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def say(api: TestClient, what: str, status: int = 200, fingerprint: str = "f1", **body: Any) -> Any:
    answer = api.post(f"{PATH}/{fingerprint}/{what}", json={"project": "erl", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def back_again(plant: Plant, run: str, name: str) -> None:
    """Save a run that began just now, after any acknowledgement."""
    plant(run, finding(), name=name, ago=-1.0)


def test_a_leak_of_several_runs_is_one_item_per_project(api: TestClient, plant: Plant) -> None:
    plant("a", finding("recovered"), finding(fingerprint="f2"))
    plant("b")
    plant("c", finding(priority="major"))
    plant("x", finding(), project="other")
    items = listed(api, project="erl")
    assert {(item["fingerprint"], item["runs_total"]) for item in items} == {("f1", 2), ("f2", 1)}
    (leak,) = [item for item in items if item["fingerprint"] == "f1"]
    seen = [(each["run"], each["status"], each["reopened"]) for each in leak["runs"]]
    assert seen == [("a", "recovered", False), ("c", "confirmed", False)]
    assert (leak["state"], leak["priority"], leak["summary"]) == ("open", "major", "c leaks")
    assert leak["sentence"] == "Seen in a and c"
    assert len(listed(api)) == 3
    # An acknowledgement in one project does not apply to another.
    say(api, "ignore")
    states = [(i["project"], i["state"]) for i in listed(api) if i["fingerprint"] == "f1"]
    assert sorted(states) == [("erl", "ignored"), ("other", "open")]


def test_a_leak_closed_with_a_note_is_shown_as_back_in_a_later_run(
    api: TestClient, plant: Plant
) -> None:
    plant("a", finding("resolved"), name="A")
    plant("b", name="B")
    plant("c", finding(), name="C")
    closed = say(api, "close", reason="X")
    # The responses match the description of the API.
    answer, one = api.get(PATH), api.get(f"{PATH}/f1", params={"project": "erl"})
    described = incidents_api.Leaks.model_validate_json(answer.content).model_dump(mode="json")
    assert described == answer.json()
    assert incidents_api.Leak.model_validate_json(one.content).model_dump() == one.json()
    assert closed["state"] == "closed"
    assert closed["sentence"] == "Seen in A and C, closed by note “X”"
    # A run that existed before and still leaks does not count as a return.
    plant("c", finding("suspected"), name="C")
    assert listed(api)[0]["state"] == "closed"
    back_again(plant, "f", "F")
    (leak,) = listed(api)
    assert leak["state"] == "open"
    assert leak["sentence"] == "Seen in A and C, closed by note “X”, back in F"
    assert [seen["reopened"] for seen in leak["runs"]] == [False, False, True]


@pytest.mark.parametrize(
    ("what", "state"), [("acknowledge", "acknowledged"), ("ignore", "ignored"), ("close", "closed")]
)
def test_an_acknowledgement_applies_until_it_is_withdrawn(
    api: TestClient, plant: Plant, what: str, state: str
) -> None:
    plant("a", finding())
    said = say(api, what, reason="known")
    assert said["state"] == state
    assert [(each["kind"], each["reason"]) for each in said["acknowledgements"]] == [
        (state, "known")
    ]
    assert [item["state"] for item in listed(api, status=state)] == [state]
    assert listed(api, status="open") == []
    back = api.delete(f"{PATH}/f1/{what}", params={"project": "erl"})
    assert (back.status_code, back.json()["state"], back.json()["acknowledgements"]) == (
        200,
        "open",
        [],
    )
    again = api.delete(f"{PATH}/f1/{what}", params={"project": "erl"})
    assert again.status_code == 404
    assert again.json()["error"]["code"] == "nothing_to_take_back"


def test_an_acknowledgement_expires(
    api: TestClient, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("a", finding())
    said = say(api, "acknowledge", reason="known", expires_in_seconds=3_600)
    assert said["state"] == "acknowledged"
    assert said["acknowledgements"][0]["expires_at"] > said["acknowledgements"][0]["created_at"]
    monkeypatch.setattr("time.time", lambda now=time.time: now() + 3_601)
    (leak,) = listed(api)
    assert (leak["state"], leak["acknowledgements"]) == ("open", [])


def test_a_new_acknowledgement_replaces_the_old_but_not_a_closing_note(
    api: TestClient, plant: Plant
) -> None:
    plant("a", finding())
    say(api, "acknowledge", reason="one")
    assert [s["reason"] for s in say(api, "acknowledge", reason="two")["acknowledgements"]] == [
        "two"
    ]
    assert [s["kind"] for s in say(api, "ignore")["acknowledgements"]] == ["ignored"]
    assert [s["kind"] for s in say(api, "close", reason="X")["acknowledgements"]] == ["closed"]
    back_again(plant, "b", "B")
    after = say(api, "acknowledge", reason="again")
    both = [(s["kind"], s["reason"]) for s in after["acknowledgements"]]
    assert both == [("closed", "X"), ("acknowledged", "again")]
    assert after["sentence"] == "Seen in a, closed by note “X”, muted: “again”, back in B"


def test_a_leak_is_over_if_no_run_leaks_and_watched_growth_is_no_leak(
    api: TestClient, plant: Plant
) -> None:
    plant("a", finding(), finding("watch", "f2"))
    plant("a", finding("watch", "f2"))
    states = {item["fingerprint"]: item["state"] for item in listed(api)}
    assert states == {"f1": "over", "f2": "watched"}


def test_an_invalid_acknowledgement_is_refused_as_a_whole(api: TestClient, plant: Plant) -> None:
    plant("a", finding())
    why = {"reason": "x"}
    for what, body, field in (
        ("acknowledge", {}, "reason"), ("acknowledge", {"reason": " \n"}, "reason"),
        ("acknowledge", {"reason": "x" * 1_001}, "reason"),
        ("acknowledge", why | {"expires_in_seconds": 0}, "expires_in_seconds"),
        ("acknowledge", why | {"expires_at": 1.0}, "expires_at"),
        ("acknowledge", why | {"expires_at": 9e9, "expires_in_seconds": 1}, "expires_at"),
        ("acknowledge", why | {"until": "tomorrow"}, "until"), ("ignore", {"project": ""}, "project"),
        ("close", {}, "reason"), ("close", why | {"expires_at": 9e9}, "expires_at"),
    ):  # fmt: skip
        error = say(api, what, 422, **body)["error"]
        assert error["details"]["field"] == field, (what, body)
    assert listed(api)[0]["acknowledgements"] == []


def test_a_leak_that_no_run_of_the_project_has_is_not_found(api: TestClient, plant: Plant) -> None:
    plant("a", finding())
    for fingerprint, project in (("f2", "erl"), ("f1", "nobody")):
        error = say(api, "ignore", 404, fingerprint, project=project)["error"]
        assert error["code"] == "incident_not_found"
        assert api.get(f"{PATH}/{fingerprint}", params={"project": project}).status_code == 404
    assert api.get(f"{PATH}/f1").status_code == 422
    assert api.get(PATH, params={"status": "leaking"}).status_code == 422


def test_pages_of_the_list_neither_skip_nor_repeat_items(api: TestClient, plant: Plant) -> None:
    for run in range(4):
        plant(f"r{run}", *(finding(fingerprint=f"f{run}{n}") for n in range(3)))
    answer = api.get(PATH, params={"limit": 5}).json()
    items = answer["items"]
    while answer["next"] is not None:
        answer = api.get(PATH, params={"limit": 5, "cursor": answer["next"]}).json()
        items += answer["items"]
    seen = [item["fingerprint"] for item in items]
    assert sorted(seen) == sorted(f"f{run}{n}" for run in range(4) for n in range(3))
    assert seen[:3] == ["f30", "f31", "f32"]
    for nonsense in ("x", "1.0/f1", "1.0/f1/\x00", "nan/f1/p"):
        assert api.get(PATH, params={"cursor": nonsense}).status_code == 422


def test_the_newest_runs_are_shown_and_the_others_are_counted(
    api: TestClient, plant: Plant
) -> None:
    for run in range(MAX_RUNS + 3):
        plant(f"r{run:02}", finding())
    (leak,) = listed(api)
    assert leak["runs_total"] == MAX_RUNS + 3
    assert [seen["run"] for seen in leak["runs"]][:: MAX_RUNS - 1] == ["r03", "r22"]
    assert leak["sentence"] == "Seen in 23 runs, last in r22"


def test_the_counts_of_the_page_match_the_list(api: TestClient, plant: Plant) -> None:
    plant("a", finding(), finding(fingerprint="f2"), finding("ok", "f3"), finding(fingerprint="f4"))
    say(api, "ignore")
    say(api, "close", fingerprint="f4", reason="X")
    engine = engine_of(api)
    counts = incident_groups.counts_by_state(engine, time.time())
    assert counts == {
        "open": 1, "acknowledged": 0, "ignored": 1, "closed": 1, "over": 0, "watched": 1,
    }  # fmt: skip
    for state, count in counts.items():
        assert len(listed(api, status=state)) == count


def read(api: TestClient, path: str, status: int = 200) -> str:
    answer = api.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    return answer.text.replace("<wbr>", "")


def test_the_page_shows_the_history_and_plain_forms(api: TestClient, plant: Plant) -> None:
    empty = read(api, "/incidents")
    assert "No incidents yet" in empty and "the note it was closed with" in empty
    plant("w", finding("watch", "f2", evidence=("a little",)))
    # Growth that was never a leak is shown only on request.
    assert "No incidents match" in read(api, "/incidents")
    for asked in ("status=watched", "project=erl&fingerprint=f2"):
        assert "Watched</span>" in read(api, f"/incidents?{asked}")
    plant("a", finding(), name="A")
    # An unknown cursor leads back to the list.
    text = read(api, "/incidents?cursor=nonsense")
    read(api, "/incidents?status=nonsense", 422)
    story = ("a leaks", "Seen in A", "Leaking", "Clear the list.", "in evaluate", 'href="/runs/a"')
    for told in story:
        assert told in text, told
    assert re.findall(r'<form[^>]*action="([^"]+)"', text) == [
        "/incidents/f1/acknowledge", "/incidents/f1/close", "/incidents/f1/ignore",
    ]  # fmt: skip
    assert 'aria-current="page">Incidents' in text


def post(api: TestClient, path: str, status: int = 303, **form: str) -> Any:
    answer = api.post(path, data={"project": "erl", **form}, follow_redirects=False)
    assert answer.status_code == status, answer.text
    return answer


def test_forms_do_the_same_as_the_api_and_lead_back_to_the_leak(
    api: TestClient, plant: Plant
) -> None:
    plant("a", finding(), name="A")
    plant("b", finding(fingerprint="f2"))
    answer = post(api, "/incidents/f1/acknowledge", reason="kno\x00wn\r\n", expires="3600")
    assert answer.headers["location"] == "/incidents?project=erl&fingerprint=f1"
    text = read(api, answer.headers["location"])
    assert "Muted</b>" in text and ": known</p>" in text and "f2" not in text
    post(api, "/incidents/f1/take-back", kind="acknowledged")
    assert listed(api, status="acknowledged") == []
    post(api, "/incidents/f1/ignore")
    assert [item["fingerprint"] for item in listed(api, status="ignored")] == ["f1"]
    post(api, "/incidents/f1/close", reason="X")
    assert "closed by note “X”" in read(api, "/incidents?status=closed")


def test_an_invalid_form_is_refused_as_a_whole(api: TestClient, plant: Plant) -> None:
    plant("a", finding())
    for action, form, status in (
        ("acknowledge", {"expires": "60"}, 422), ("acknowledge", {"expires": "3600", "back": "/alerts"}, 422),
        ("close", {}, 422), ("ignore", {"project": ""}, 422), ("ignore", {"project": "nobody"}, 404),
        ("take-back", {"kind": "everything"}, 422), ("take-back", {"kind": "ignored"}, 404),
    ):  # fmt: skip
        answer = post(api, f"/incidents/f1/{action}", status, **form)
        assert answer.headers["content-type"].startswith("text/html")
    for body in (b"\xff=1", b"project=%ff", b"a=1&a=2", b"&".join([b"a=1"] * 60)):
        assert api.post("/incidents/f1/ignore", content=body).status_code == 400
    elsewhere = {"origin": "https://evil.example"}
    said = api.post("/incidents/f1/ignore", data={"project": "erl"}, headers=elsewhere)
    assert said.status_code == 403
    assert listed(api)[0]["acknowledgements"] == []


def test_the_page_of_a_run_mutes_its_leaks_and_leads_back_to_itself(
    api: TestClient, plant: Plant
) -> None:
    plant("a", finding())
    page = read(api, "/runs/a")
    assert 'href="/incidents?project=erl&amp;fingerprint=f1"' in page
    back = 'name="back" value="/runs/a"'
    # Two forms are for the leak, and one is for Notify.
    assert page.count(back) == 3 and "Never alert for this leak in this project" in page
    # The page does not require a reason; the API does.
    at = {"back": "/runs/a"}
    answer = post(api, "/incidents/f1/acknowledge", expires="86400", **at)
    assert answer.headers["location"] == "/runs/a#findings"
    (leak,) = listed(api)
    assert (leak["state"], leak["acknowledgements"][0]["reason"]) == ("acknowledged", "")
    page = read(api, "/runs/a")
    assert "<b>Muted</b>" in page and ">Unmute</button>" in page and "Mute…" not in page
    answer = post(api, "/incidents/f1/take-back", kind="acknowledged", **at)
    assert answer.headers["location"] == "/runs/a#findings"
    post(api, "/incidents/f1/ignore", back="/runs/a")
    assert "<b>Muted for good</b>" in read(api, "/runs/a")
    assert listed(api)[0]["sentence"] == "Seen in a, muted for good"
    assert 'action="/incidents' not in read(api, "/runs/a/report.html")


@pytest.mark.parametrize(
    "back",
    [
        "/", "/alerts", "/runs/a/report.html", "/runs/a#x", "/runs/../alerts", "//evil.example/runs/a",
        "https://evil.example/runs/a", "/\\evil.example", "/runs/a?x=\\", "/runs/" + "a" * 3_000, "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_form_can_lead_only_to_the_page_of_a_run(
    api: TestClient, plant: Plant, back: str
) -> None:
    plant("a", finding())
    for action in ("acknowledge", "take-back"):
        post(api, f"/incidents/f1/{action}", 422, expires="3600", kind="ignored", back=back)
    assert listed(api)[0]["acknowledgements"] == []


def test_projects_can_be_chosen_if_there_are_two(api: TestClient, plant: Plant) -> None:
    plant("a", finding())
    assert '<select name="project">' not in read(api, "/incidents")
    plant("x", finding(fingerprint="f9"), project="other & more")
    text = read(api, "/incidents?project=other+%26+more")
    assert "<option selected>other &amp; more</option>" in text
    assert "f9" in text and "a leaks" not in text


def test_links_in_a_note_can_be_clicked_on_both_pages(api: TestClient, plant: Plant) -> None:
    evil = "<img src=x onerror=alert(1)>"
    plant("a", finding(advice=(evil,), phase_path=evil), name=evil)
    review = "https://forge.example/erl/pulls/7?tab=files"
    assert "Closed</b>" not in read(api, "/runs/a")
    say(api, "close", reason=f"fixed, see {review}. javascript:alert(1) {evil}")
    link = f'<a href="{review}" rel="noopener noreferrer">{review}</a>. javascript:alert(1) &lt;img'
    of_leak, of_run = read(api, "/incidents"), read(api, "/runs/a")
    assert of_leak.count(link) == 2  # in the history and in the form that withdraws it
    assert "<b>Closed</b>" in of_run and of_run.count(link) == 1
    assert 'href="javascript' not in of_leak + of_run and "<img src=x" not in of_leak + of_run
    for text in (
        "https://a@evil.example/x",
        "ftp://a.example/x",
        "//a.example",
        "https://",
        "http://[/x",
    ):
        assert {piece.href for piece in with_links(f"see {text} there")} == {None}
    assert {piece.href for piece in with_links("see https://\u202ea there")} == {None}
    assert api.delete(f"{PATH}/f1/close", params={"project": "erl"}).status_code == 200
    assert review not in read(api, "/runs/a")
