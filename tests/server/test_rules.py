"""Rules and their states are rows, reported once across restarts and servers; changed in the API and on the page."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.server.stored import count_of, put_run, serving

from leakline.analysis.results import Interval, Moment, OomForecast, Verdict, to_json
from leakline.analysis.run_history import ProcessHistory, RunHistory
from leakline.analysis.timeline import Timeline, timelines_of
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.rules import rule_evaluation
from leakline_server.alerts.rules.rule_alerts import Looks, alerts_of_rules, looks_at
from leakline_server.alerts.rules.rule_presets import PRESETS, SETS
from leakline_server.store import examinations
from leakline_server.store.alerts import alert_rows as alerts
from leakline_server.store.alerts import assertions
from leakline_server.store.alerts.alert_rows import Alert
from leakline_server.store.alerts.assertions import SameRule, Terms, TooManyRules
from leakline_server.store.engine import Engine, writing
from leakline_server.store.examinations import Basis, ChangedMeanwhile, Examined
from leakline_server.store.findings import Incidents
from leakline_server.store.maintenance import run_deletion
from leakline_server.store.schema import alerts as alert_rows
from leakline_server.store.schema import assertion_states, runs
from leakline_server.web.rules import api as rules_api
from leakline_server.workers.examination_worker import Examiner, Wakes

NOW = 1_760_000_000.0
QUEUE = Terms("Queue", "gauge.queue", above=50.0)


def plant(engine: Engine, run_id: str, name: str = "fix") -> None:
    with writing(engine) as connection:
        put_run(connection, run_id, name=name, state="running")


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """Return a database with the run r1."""
    plant(engine, "r1")
    return engine


def look(
    engine: Engine, values: Sequence[float | None], run_id: str = "r1", project: str = "erl",
    name: str = "fix", series: str = "gauge.queue", at: float = NOW, oom: OomForecast | None = None,
) -> list[Alert]:  # fmt: skip
    """Examine the run, commit, and return the new alerts."""
    oom = oom or OomForecast()
    verdict = Verdict(run_id, "generation", len(values), "ok", "…", None, None, oom=oom)
    basis = basis_of(engine, run_id)
    looks = looks_at(basis.rules, history_of(values, run_id, series), oom, at)
    return save(engine, (basis, looks), ExaminedRun(run_id, project, name, verdict, at))


def basis_of(engine: Engine, run_id: str) -> Basis:
    loaded = examinations.load(engine, run_id)
    return Basis(loaded.revisions, loaded.rules, {})


def history_of(
    values: Sequence[float | None], run_id: str = "r1", series: str = "gauge.queue"
) -> RunHistory:
    rows = len(values)
    return RunHistory(run_id, processes=(ProcessHistory(
        "p", 0, "main", 1, range(rows), [NOW + i for i in range(rows)], [float(i) for i in range(rows)],
        list(range(rows)), [None] * rows, [""] * rows, ["generation_end"] * rows, {series: list(values)},
    ),))  # fmt: skip


def save(engine: Engine, looked: tuple[Basis, Looks], of: ExaminedRun) -> list[Alert]:
    basis, looks = looked
    with engine.connect() as connection:
        known = set(connection.scalars(select(alert_rows.c.id)))
        sent = alerts.alert_histories(connection, of.id)
    found, states = alerts_of_rules(looks, sent, of)
    run = {"id": of.id, "project": of.project, "name": of.name}
    none, verdict = Incidents((), (), ()), of.verdict
    examined = Examined(run, basis, verdict, to_json(verdict), none, found, states, of.at)
    if examinations.save(engine, examined) is None:
        raise ChangedMeanwhile
    return [alert for alert in found if alert.id not in known]


def looked(engine: Engine, *values: float) -> tuple[Basis, Looks]:
    basis = basis_of(engine, "r1")
    return basis, looks_at(basis.rules, history_of(values), OomForecast(), NOW)


VERDICT = Verdict("r1", "generation", 2, "ok", "…", None, None)
EXAMINED = ExaminedRun("r1", "erl", "fix", VERDICT, NOW)


def titles(found: Sequence[Alert]) -> list[str]:
    return [alert.payload["title"].split(" in ")[0] for alert in found]


def add(engine: Engine, *terms: Terms, source: Any = "api") -> list[int]:
    return [rule.id for rule in assertions.add_rules(engine, terms, source, NOW)]


def each_told(engine: Engine, values: Sequence[float], seconds_each: float = 30) -> list[Alert]:
    """Return the alerts if the run is examined after each value."""
    return [
        alert
        for turn in range(len(values))
        for alert in look(engine, values[: turn + 1], at=NOW + seconds_each * turn)
    ]


def count_states(engine: Engine) -> int:
    return count_of(engine, assertion_states)


def test_a_rule_fires_once_and_resolves_once_over_many_examinations(engine: Engine) -> None:
    (number,) = add(engine, QUEUE)
    values = [1.0, 60, 70, 60, 1, 1, 1, 1, 1, 60]
    told = [a for end in range(1, 11) for _ in range(2) for a in look(engine, values[:end])]
    assert titles(told) == ["Rule fired: Queue", "Rule resolved: Queue", "Rule fired: Queue"]
    assert {alert.subject for alert in told} == {f"rule {number}"}
    assert {alert.event for alert in told} == {"rule.fired"}
    assert [alert.urgent for alert in told] == [True, False, True]
    assert len({alert.id for alert in told}) == 3


def test_a_rule_that_resolves_between_two_examinations_is_one_alert(engine: Engine) -> None:
    add(engine, QUEUE)
    assert look(engine, [1.0]) == []
    (alert,) = look(engine, [1.0, 60, 1, 1, 1])
    assert alert.payload["title"] == "Rule resolved: Queue in erl/fix"
    assert alert.payload["summary"] == (
        "gauge.queue is 60 at generation 1: above 50; already resolved: "
        "gauge.queue is 1 at generation 4: no longer above 50"
    )
    assert alert.urgent
    assert look(engine, [1.0, 60, 1, 1, 1, 1]) == []


def test_the_alert_of_a_forecast_expires_with_it(engine: Engine) -> None:
    add(engine, Terms("Soon", "", "forecast", below=5.0))
    oom = OomForecast(
        "high", 2**30, "cgroup", Interval(3.0, 2.0, 4.0),
        Moment("2030-01-01T00:00:00Z", "2029-12-31T00:00:00Z", "2030-01-02T00:00:00Z"),
    )  # fmt: skip
    (alert,) = look(engine, [1.0, 1.0], oom=oom)
    assert alert.payload["summary"] == "memory has 2 generations left at generation 1: below 5"
    assert alert.expires_at == 1_893_456_000.0
    assert look(engine, [1.0, 1.0], oom=oom) == []


def test_servers_that_examine_a_run_at_once_write_one_alert(engine: Engine) -> None:
    add(engine, QUEUE)
    look(engine, [1.0])
    ready = threading.Barrier(4)

    def one(server: int) -> int:
        ready.wait(10)
        while True:
            with contextlib.suppress(ChangedMeanwhile):
                # Each server has read a little more of the run than the previous one.
                return len(look(engine, [1.0] + [60.0] * (1 + server), at=NOW + server))

    with ThreadPoolExecutor(4) as servers:
        assert sum(servers.map(one, range(4))) == 1
    assert count_of(engine, alert_rows) == 1


def test_writes_continue_while_a_rule_is_evaluated(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule for many series takes seconds, and ingest and deliveries must not wait for it."""
    add(engine, QUEUE)
    wrote: list[bool] = []

    def write(done: threading.Event) -> None:
        with writing(engine) as connection:
            connection.execute(runs.update().values(name="fix"))
        done.set()

    def slowly(history: RunHistory) -> tuple[Timeline, ...]:
        done = threading.Event()
        threading.Thread(target=write, args=(done,), daemon=True).start()
        wrote.append(done.wait(10))
        return timelines_of(history)

    monkeypatch.setattr(rule_evaluation, "timelines_of", slowly)
    monkeypatch.setattr(
        examinations, "load_for_examination", lambda *_: (history_of([1.0, 60.0]), 0)
    )
    Examiner(engine, 60.0, Wakes(lambda run: None, lambda: None)).examine("r1")
    assert wrote == [True]
    with engine.connect() as connection:
        assert "rule.fired" in set(connection.scalars(select(alert_rows.c.event)))


def test_a_rule_changed_during_an_examination_repeats_it(engine: Engine) -> None:
    (number,) = add(engine, QUEUE)
    looks = looked(engine, 1.0, 60.0)
    assertions.change_rule(engine, number, Terms("Queue", "gauge.queue", above=100.0))
    with pytest.raises(ChangedMeanwhile):
        save(engine, looks, EXAMINED)
    assert count_states(engine) == 0
    looks = looked(engine, 1.0, 600.0)
    assertions.remove_rule(engine, number)
    with pytest.raises(ChangedMeanwhile):
        save(engine, looks, EXAMINED)


def test_a_rule_broken_by_a_deleted_run_fires_when_the_run_is_restored(engine: Engine) -> None:
    add(engine, QUEUE)
    run_deletion.mark(engine, ["r1"], NOW)
    look(engine, [1.0, 60.0])
    assert (count_states(engine), count_of(engine, alert_rows)) == (0, 0)
    run_deletion.undo(engine, ["r1"])
    assert titles(look(engine, [1.0, 60.0, 60.0])) == ["Rule fired: Queue"]


def test_an_alert_of_another_server_is_not_repeated(engine: Engine) -> None:
    add(engine, QUEUE)
    look(engine, [1.0])
    looks = looked(engine, 1.0, 60.0, 60.0)
    assert titles(look(engine, [1.0, 60.0])) == ["Rule fired: Queue"]
    with pytest.raises(ChangedMeanwhile):
        save(engine, looks, EXAMINED)
    # Another examination finds nothing new.
    assert look(engine, [1.0, 60.0, 60.0]) == []


@pytest.mark.parametrize(
    ("project", "run", "fires"),
    [
        ("erl", None, True), ("other", None, False), (None, "r1", True), (None, "fix", True),
        (None, "r2", False), ("other", "fix", False),
    ],
)  # fmt: skip
def test_a_rule_applies_to_the_runs_that_it_names(
    engine: Engine, project: str | None, run: str | None, fires: bool
) -> None:
    """A rule that does not apply is not even locked."""
    add(engine, Terms("Queue", "gauge.queue", above=50.0, project=project, run=run))
    assert bool(look(engine, [60.0])) is fires
    assert count_states(engine) == fires


def test_each_run_has_its_own_state(engine: Engine) -> None:
    plant(engine, "r2", name="other")
    add(engine, QUEUE)
    assert titles(look(engine, [60.0])) == ["Rule fired: Queue"]
    assert titles(look(engine, [60.0], "r2", name="other")) == ["Rule fired: Queue"]
    assert look(engine, [60.0, 60.0]) == []


def test_steps_of_one_limit_share_the_message_of_the_strictest(engine: Engine) -> None:
    numbers = add(engine, *(PRESETS[name] for name in SETS["tensors"].rules))

    def tensors(*values: float) -> list[Alert]:
        return look(engine, values, series="tensors.count")

    (jump,) = tensors(90, 4038)
    assert jump.payload["title"].startswith("Rule fired: Tensors critical")
    assert "Also fired: Tensors elevated, Tensors high." in jump.payload["evidence"]
    assert jump.subject == f"rule {numbers[2]}"
    assert tensors(90, 4038, 300, 300) == []
    (over,) = tensors(90, 4038, 300, 300, 300)
    assert titles([over]) == ["Rule resolved: Tensors critical"]
    assert len(over.payload["evidence"]) == 1
    (rest,) = tensors(90, 4038, 300, 300, 300, 87, 87, 87)
    assert titles([rest]) == ["Rule resolved: Tensors high"]
    assert "Also resolved: Tensors elevated." in rest.payload["evidence"]


def ladder(engine: Engine, *limits: float, **given: Any) -> None:
    add(engine, *(Terms(f"> {n:g}", "gauge.queue", above=n, **given) for n in limits))


def test_a_flapping_ladder_has_at_most_five_alerts_an_hour(engine: Engine) -> None:
    ladder(engine, 99.0, 100.0, 200.0, 500.0, 501.0, grace=1)
    values = [1.0, 600.0] * 15
    told = each_told(engine, values)
    fires, ends = "Rule fired: > 501", "Rule resolved: > 501"
    assert titles(told) == [fires, ends, fires, ends, fires]
    often = "At least 5 alerts were sent within an hour"
    assert [often in alert.payload["summary"] for alert in told] == [False] * 4 + [True]
    # All its steps keep firing, and they resolve together after a quiet hour.
    (over,) = look(engine, [*values, 1.0], at=NOW + 30 * 30 + 3_600)
    assert titles([over]) == [ends]
    assert "Also resolved: > 99, > 100, > 200, > 500." in over.payload["evidence"]


def test_steps_that_resolve_one_by_one_count_together(engine: Engine) -> None:
    ladder(engine, 100.0, 200.0, 300.0, grace=1)
    told = each_told(engine, [1.0, 400, 250, 150, 50, 400, 250, 150, 50, 400, 50])
    assert titles(told) == [
        "Rule fired: > 300", "Rule resolved: > 300", "Rule resolved: > 200", "Rule resolved: > 100",
        "Rule fired: > 300",
    ]  # fmt: skip
    assert "At least 5 alerts were sent" in told[-1].payload["summary"]


def test_a_stricter_step_is_reported_however_often_the_others_were(engine: Engine) -> None:
    ladder(engine, 100.0, 500.0, grace=1)
    values = [1.0, 150.0] * 6
    assert len(each_told(engine, values)) == 5
    (worse,) = look(engine, [*values, 600.0], at=NOW + 400)
    assert titles([worse]) == ["Rule fired: > 500"]


def test_no_step_resolves_while_a_stricter_one_fires(engine: Engine) -> None:
    ladder(engine, 100.0, grace=1)
    ladder(engine, 500.0, grace=4)
    assert titles(look(engine, [600.0])) == ["Rule fired: > 500"]
    assert look(engine, [600.0, 1, 1, 1]) == []
    (over,) = look(engine, [600.0, 1, 1, 1, 1])
    assert titles([over]) == ["Rule resolved: > 500"]
    assert "Also resolved: > 100." in over.payload["evidence"]


def test_a_paused_rule_is_silent_and_starts_again(engine: Engine) -> None:
    (number,) = add(engine, QUEUE)
    assert look(engine, [60.0])
    assertions.change_rule(engine, number, Terms("Queue", "gauge.queue", above=50.0, enabled=False))
    assert count_states(engine) == 0
    assert look(engine, [60.0, 60.0]) == []
    assertions.change_rule(engine, number, QUEUE)
    assert titles(look(engine, [60.0, 1, 60])) == []  # it has fired there before
    assert titles(look(engine, [60.0, 1, 60, 1, 1, 1])) == ["Rule resolved: Queue"]


def test_a_changed_limit_applies_to_a_firing_rule(engine: Engine) -> None:
    (number,) = add(engine, QUEUE)
    assert look(engine, [60.0])
    assertions.change_rule(engine, number, Terms("Queue", "gauge.queue", above=100.0, grace=1))
    assert titles(look(engine, [60.0, 60.0])) == ["Rule resolved: Queue"]
    assertions.change_rule(engine, number, Terms("Queue", "gauge.other", above=100.0))
    assert count_states(engine) == 0
    assert assertions.change_rule(engine, 999, QUEUE) is None


def test_removing_a_rule_removes_its_states(engine: Engine) -> None:
    (number,) = add(engine, QUEUE)
    look(engine, [60.0])
    assertions.remove_rule(engine, number)
    assert count_states(engine) == 0
    assert assertions.get_rule(engine, number) is None
    assert look(engine, [60.0, 60.0]) == []


def test_live_runs_in_which_a_rule_fires_are_listed(engine: Engine) -> None:
    (number,) = add(engine, QUEUE)
    assert assertions.firing(engine, [number]) == {}
    look(engine, [1.0, 60.0])
    ((found,),) = assertions.firing(engine, [number]).values()
    assert (found["run"], found["project"]) == ("r1", "erl")
    assert (found["generation"], found["value"]) == (1, 60.0)
    with writing(engine) as connection:
        connection.execute(runs.update().values(state="finished"))
    assert assertions.firing(engine, [number]) == {}


def test_a_rule_is_not_stored_twice_and_all_or_none_are_added(engine: Engine) -> None:
    add(engine, QUEUE)
    other = Terms("Other", "gauge.queue", above=50.0)
    with pytest.raises(SameRule):
        add(engine, other, QUEUE)
    assert [rule.name for rule in assertions.list_rules(engine)] == ["Queue"]
    (second,) = add(engine, other)
    with pytest.raises(SameRule):
        assertions.change_rule(engine, second, QUEUE)
    add(engine, Terms("Queue", "gauge.queue", above=50.0, project="erl"))


def test_the_number_of_rules_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assertions, "MAX_RULES", 2)
    many = [Terms(f"r{n}", "s", above=1.0) for n in range(3)]
    with pytest.raises(TooManyRules):
        add(engine, *many)
    with pytest.raises(TooManyRules):
        assertions.take_file(engine, many, NOW)
    assert assertions.list_rules(engine) == []


def test_rules_of_the_file_keep_their_ids_by_name(engine: Engine) -> None:
    (own,) = add(engine, Terms("Mine", "gauge.queue", above=1e9))
    assertions.take_file(engine, [QUEUE, Terms("Gone", "s", above=1.0)], NOW)
    by_name = {rule.name: rule for rule in assertions.list_rules(engine)}
    look(engine, [60.0])
    changed = Terms("Queue", "gauge.queue", above=40.0, advice="bound it")
    assertions.take_file(engine, [changed, Terms("New", "s", above=1.0)], NOW)
    after = {rule.name: rule for rule in assertions.list_rules(engine)}
    assert set(after) == {"Mine", "Queue", "New"}
    assert after["Queue"].id == by_name["Queue"].id and after["Mine"].id == own
    queue = after["Queue"]
    assert (queue.above, queue.advice, queue.source) == (40.0, "bound it", "file")
    # Its state for the run is kept, so nothing is reported again.
    assert look(engine, [60.0, 60.0]) == []
    assertions.take_file(engine, [], NOW)
    assert [rule.name for rule in assertions.list_rules(engine)] == ["Mine"]


WANTED = {"name": "Queue", "series": "gauge.queue", "above": 50}
RULES = "/api/v1/rules"


def post_rule(api: TestClient, **given: Any) -> dict[str, Any]:
    answer = api.post(RULES, json={**WANTED, **given})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def error(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    assert set(found) == {"code", "message", "details"} and "\n" not in found["message"]
    return found


def test_a_rule_is_created_read_changed_and_deleted(api: TestClient) -> None:
    made = post_rule(api, project="erl", above="20 GB", advice="bound it")
    assert made["above"] == 20e9 and made["source"] == "api" and made["firing"] == []
    rules_api.Rule.model_validate(made)
    one = f"{RULES}/{made['id']}"
    assert api.get(one).json() == made
    changed = api.patch(one, json={"above": 60, "project": None, "hold": 2}).json()
    assert changed == {**made, "above": 60.0, "project": None, "hold": 2}
    assert api.patch(one, json={}).json() == changed
    assert api.delete(one).status_code == 204
    assert error(api.get(one))["code"] == "rule_not_found"
    assert api.patch(one, json={}).status_code == api.delete(one).status_code == 404


def test_the_list_is_read_in_pages(api: TestClient) -> None:
    numbers = [post_rule(api, name=f"r{n}")["id"] for n in range(5)]
    first = api.get(RULES, params={"limit": 2}).json()
    rest = api.get(RULES, params={"limit": 50, "cursor": first["next"]}).json()
    assert [r["id"] for r in first["items"] + rest["items"]] == numbers
    assert rest["next"] is None
    rules_api.Rules.model_validate(first)
    assert error(api.get(RULES, params={"cursor": "x"}))["details"]["field"] == "cursor"
    assert api.get(RULES, params={"cursor": "9" * 19}).status_code == 422


def test_a_preset_makes_its_rules(api: TestClient) -> None:
    bands = api.post(RULES, json={"preset": "tensors", "project": "erl"})
    assert bands.status_code == 201
    assert [r["above"] for r in bands.json()["items"]] == [99.0, 200.0, 500.0]
    rules_api.Rules.model_validate(bands.json())
    high = api.post(RULES, json={"preset": "tensors.high", "series": "tfjs.tensors"}).json()
    assert (high["series"], high["above"]) == ("tfjs.tensors", 200.0)
    offered = api.get(f"{RULES}/presets").json()
    rules_api.Presets.model_validate(offered)
    assert {each["preset"] for each in offered["items"]} >= {"tensors"}


def test_a_wrong_field_of_a_rule_is_named(api: TestClient) -> None:
    """All fields are in `alerts/test_rule_fields.py`; here the rule, its preset, the type and the schema refuse."""
    for name, wrong in (("above", "lots"), ("preset", "nothing"), ("hold", "2"), ("threshold", 5)):
        answer = api.post(RULES, json={**WANTED, name: wrong})
        assert answer.status_code == 422
        assert error(answer)["details"]["field"].split(".")[0] == name
    assert api.get(RULES).json()["items"] == []


def test_a_wrong_change_leaves_the_rule_as_it_was(api: TestClient) -> None:
    made = post_rule(api)
    one = f"{RULES}/{made['id']}"
    for wrong in ({"above": None}, {"below": 60}, {"preset": "gpu"}, {"id": 5}, {"measure": "forecast"}):  # fmt: skip
        assert api.patch(one, json=wrong).status_code == 422, wrong
    assert api.get(one).json() == made
    for number in ("0", "x", "9" * 30):
        assert api.get(f"{RULES}/{number}").status_code == 422
    assert api.post(RULES, content=b"{").status_code == 400


def test_a_duplicate_rule_is_refused_with_the_id_of_the_first(api: TestClient) -> None:
    made = post_rule(api)
    again = api.post(RULES, json=WANTED)
    assert again.status_code == 409
    assert error(again)["details"] == {"rule": made["id"]}
    other = post_rule(api, name="Other")
    assert api.patch(f"{RULES}/{other['id']}", json={"name": "Queue"}).status_code == 409


@pytest.fixture
def with_file(tmp_path: Path) -> Any:
    filed = Terms("Filed", "gauge.queue", above=5.0)
    with serving(f"sqlite:///{tmp_path}/x.db", rules=(filed,)) as client:
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


def test_the_page_creates_changes_pauses_and_deletes_a_rule(api: TestClient) -> None:
    made = form(api, "/alerts/rules", series="gauge.queue", above="500 MiB", hold="2", name="Queue")
    assert made.status_code == 303
    (rule,) = items(api)
    assert made.headers["location"] == f"/alerts#rule-{rule['id']}"
    told = (rule["above"], rule["hold"], rule["grace"], rule["source"])
    assert told == (500 * 2**20, 2, 3, "page")
    here = f"/alerts/rules/{rule['id']}"
    changed = form(api, here, series="gauge.queue", below="7.5", grace="1", project="erl")
    assert changed.status_code == 303
    (rule,) = items(api)
    # Fields that were left blank are removed.
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
    assert again.status_code == 409 and "is identical" in again.text


def test_a_refused_form_keeps_its_values_and_shows_the_error(api: TestClient) -> None:
    answer = form(api, "/alerts/rules", series="gauge.queue", above="lots", advice="call me")
    assert answer.status_code == 422
    assert "must be a number, or a size" in answer.text.replace("&#34;", '"')
    assert 'value="lots"' in answer.text and 'value="call me"' in answer.text
    assert items(api) == []
    number = post_rule(api)["id"]
    answer = form(api, f"/alerts/rules/{number}", series="gauge.queue", above="1", hold="none")
    assert answer.status_code == 422
    assert 'value="none"' in answer.text and "must be a whole number from 1 to 128" in answer.text
    assert items(api)[0]["above"] == 50.0


def test_text_of_people_is_escaped_on_the_page(api: TestClient) -> None:
    evil = "<img src=x onerror=alert(1)>"
    post_rule(api, name=evil, advice=evil, project=evil, run=evil, series=evil)
    assert "<img" not in api.get("/alerts").text
    assert "<img" not in form(api, "/alerts/rules", name=evil, series=evil).text


def test_the_page_says_where_a_rule_fires(api: TestClient, make_run: Any, eventually: Any) -> None:
    post_rule(api, name="Classes", series="type.app.Env.count", above=100)
    make_run().begin(api, 36)
    (firing,) = eventually(lambda: items(api)[0]["firing"])
    assert (firing["run"], firing["project"]) == ("r1", "erl")
    text = api.get("/alerts").text
    assert 'href="/runs/r1"' in text and "erl/before-fix" in text.replace("<wbr>", "")
