"""An alert is a row first, and one delivery belongs to one process at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from leakline_server.alerts.sending.signing import make_secret
from leakline_server.store.alerts import deliveries, webhooks
from leakline_server.store.alerts.alert_rows import Alert, add, told
from leakline_server.store.alerts.deliveries import Claimed, Try, claim
from leakline_server.store.engine import writing
from leakline_server.store.runs.runs import BadCursor
from leakline_server.store.schema import alerts as alert_table
from leakline_server.store.schema import deliveries as delivery_table
from leakline_server.store.schema import incidents as incident_table
from leakline_server.store.schema import runs as run_table
from leakline_server.store.schema import tries as try_table
from leakline_server.store.schema import webhooks as webhook_table

NOW = 1_760_000_000.0
MADE = Try(NOW, 0.1, 500, "answered 500")


def registration(
    engine: Engine, url: str = "https://hook.example/a", secret: str | None = None
) -> webhooks.Registered:
    return webhooks.register(engine, url, "standard", secret, make_secret, NOW)


def register(engine: Engine, url: str = "https://hook.example/a") -> int:
    return registration(engine, url).webhook.id


def make(engine: Engine, url: str) -> webhooks.Webhook:
    return webhooks.make(engine, "chat", url, "standard", make_secret(), NOW)


def write(engine: Engine, *alerts: Alert) -> int:
    with writing(engine) as connection:
        return add(connection, alerts)


def claimed_at(engine: Engine, webhook: int, at: float = NOW) -> Claimed:
    found = claim(engine, webhook, at, 30)
    assert found is not None
    return found


def states(engine: Engine) -> list[str]:
    query = select(delivery_table.c.state).order_by(delivery_table.c.id)
    with engine.connect() as connection:
        return list(connection.scalars(query))


def test_a_finding_that_is_rolled_back_takes_its_alert_with_it(
    engine: Engine, alert: Alert
) -> None:
    register(engine)
    with pytest.raises(ZeroDivisionError), writing(engine) as connection:
        add(connection, [alert])
        raise ZeroDivisionError
    assert states(engine) == []
    with engine.connect() as connection:
        assert connection.scalars(select(alert_table.c.id)).all() == []


def test_the_same_alert_written_twice_is_delivered_once(engine: Engine, alert: Alert) -> None:
    register(engine)
    assert write(engine, alert) == 1
    assert write(engine, replace(alert, created_at=NOW + 9)) == 0
    assert states(engine) == ["pending"]


def test_what_was_told_is_the_last_event_and_how_many_also_without_a_webhook(
    engine: Engine, alert: Alert
) -> None:
    later = replace(alert, id="msg_2", event="incident.confirmed", created_at=NOW + 1)
    assert write(engine, alert, later) == 0
    with engine.connect() as connection:
        found = told(connection, alert.run_id)
        assert told(connection, "another run") == {}
    assert set(found) == {alert.incident_id}
    assert (found["i1"].event, found["i1"].count) == ("incident.confirmed", 2)


def test_only_one_of_many_gets_a_delivery(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    together = threading.Barrier(8)

    def attempt(_: int) -> bool:
        together.wait(10)
        return claim(engine, webhook, NOW, 30) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_nothing_is_due_before_its_time(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    assert claim(engine, webhook, NOW - 0.5, 30) is None
    assert deliveries.due_times(engine) == {webhook: NOW}


def test_a_claim_runs_out_when_its_process_died(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    first = claimed_at(engine, webhook)
    assert claim(engine, webhook, NOW + 29, 30) is None
    again = claimed_at(engine, webhook, NOW + 30)
    assert (first.alert_id, first.tries) == (alert.id, 1)
    assert (again.alert_id, again.tries) == (alert.id, 2)


def test_who_lost_a_claim_can_no_longer_fail_it_but_can_still_say_that_it_arrived(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert)
    slow, owner = (claimed_at(engine, webhook, at) for at in (NOW, NOW + 30))
    deliveries.failed(engine, slow, MADE)
    deliveries.try_again(engine, slow, MADE, NOW + 31)
    assert states(engine) == ["claimed"]
    deliveries.delivered(engine, slow, Try(NOW, 0.2, 200, None))
    deliveries.try_again(engine, owner, MADE, NOW + 35)
    assert states(engine) == ["delivered"]


def test_every_try_is_a_row_with_its_status_and_seconds(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    deliveries.try_again(engine, claimed_at(engine, webhook), MADE, NOW + 5)
    second = claimed_at(engine, webhook, NOW + 5)
    deliveries.delivered(engine, second, Try(NOW + 5, 0.25, 200, None))
    with engine.connect() as connection:
        rows = connection.execute(select(try_table).order_by(try_table.c.id)).all()
        delivery = connection.execute(select(delivery_table)).one()
    told = [(r.status, r.seconds, r.error) for r in rows]
    assert told == [(500, 0.1, "answered 500"), (200, 0.25, None)]
    assert (delivery.state, delivery.tries) == ("delivered", 2)
    assert (delivery.last_status, delivery.delivered_at) == (200, NOW + 5.25)


def test_servers_that_start_together_make_one_secret_and_one_webhook(engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        registered = list(pool.map(lambda _: registration(engine), range(4)))
    assert len([r for r in registered if r.made_secret]) == 1
    assert len({(r.webhook.id, r.webhook.secret) for r in registered}) == 1


def test_a_made_secret_is_shown_once_and_stays_until_another_is_given(engine: Engine) -> None:
    first = registration(engine, "https://a.example/")
    again = registration(engine, "https://b.example/")
    assert first.made_secret == first.webhook.secret == again.webhook.secret
    assert again.made_secret is None
    assert first.made_secret not in repr(first)
    given = make_secret()
    registered = registration(engine, secret=given)
    assert (registered.webhook.secret, registered.made_secret) == (given, None)


@pytest.mark.parametrize("unset", [True, False])
def test_an_address_no_longer_configured_gets_nothing_more_and_what_waits_fails_visibly(
    engine: Engine, alert: Alert, unset: bool
) -> None:
    old = register(engine)
    write(engine, alert)
    if unset:
        webhooks.unregister(engine)
    else:
        register(engine, "https://hook.example/new")
    assert claim(engine, old, NOW, 30) is None
    with engine.connect() as connection:
        row = connection.execute(select(delivery_table)).one()
        enabled = select(webhook_table.c.enabled).where(webhook_table.c.id == old)
        assert not connection.scalar(enabled)
    assert row.state == "failed"
    assert "no longer in LEAKLINE_WEBHOOK_URL" in row.last_error
    # The old address in the environment again is the old webhook again.
    assert register(engine) == old


def test_a_receiver_that_wanted_no_more_stays_disabled_over_a_restart(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert, replace(alert, id="msg_2", incident_id=None))
    gone = Try(NOW, 0.1, 410, "answered 410 Gone")
    deliveries.failed(engine, claimed_at(engine, webhook), gone, disable=True)
    assert states(engine) == ["failed", "failed"]
    assert registration(engine).webhook.disabled_reason == "answered 410 Gone"
    assert write(engine, replace(alert, id="msg_3")) == 0
    webhooks.enable_configured(engine, "https://hook.example/a")
    assert write(engine, replace(alert, id="msg_4")) == 1


RUN = {"incident_id": None, "subject": "run"}


@pytest.mark.parametrize(
    ("earlier", "later", "replaced"),
    [
        ({}, {}, True),
        (RUN, RUN, True),
        (RUN, {"incident_id": None, "subject": "oom"}, False),
        ({"incident_id": None}, {"incident_id": None}, False),
        ({}, RUN, False),
        # Several changes told at once: of two incidents, or of one.
        ({"subject": "digest"}, {"subject": "digest", "incident_id": "i2"}, False),
        ({}, {"subject": "digest"}, True),
    ],
)
def test_a_newer_state_replaces_what_waits_of_the_same_incident_or_subject(
    engine: Engine, alert: Alert, earlier: dict[str, Any], later: dict[str, Any], replaced: bool
) -> None:
    with writing(engine) as connection:
        first = connection.execute(select(incident_table)).one()._mapping
        connection.execute(
            incident_table.insert().values({**first, "id": "i2", "fingerprint": "f2"})
        )
    register(engine)
    write(engine, replace(alert, **earlier))
    write(engine, replace(alert, id="msg_2", **later))
    assert states(engine) == ["superseded" if replaced else "pending", "pending"]


def test_a_newer_state_replaces_nothing_that_has_arrived_or_goes_to_another_run(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    with writing(engine) as connection:
        run = connection.execute(select(run_table)).one()._mapping
        connection.execute(run_table.insert().values({**run, "id": "r2"}))
    write(engine, replace(alert, **RUN), replace(alert, id="msg_2", run_id="r2", **RUN))
    deliveries.delivered(engine, claimed_at(engine, webhook), Try(NOW, 0.2, 200, None))
    write(engine, replace(alert, id="msg_3", **RUN))
    assert states(engine) == ["delivered", "pending", "pending"]


def test_a_claim_that_ran_out_is_not_sent_again_when_there_is_a_newer_state(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert)
    claimed_at(engine, webhook)
    write(engine, replace(alert, id="msg_2", created_at=NOW + 1))
    assert claimed_at(engine, webhook, NOW + 31).alert_id == "msg_2"
    assert states(engine) == ["superseded", "claimed"]


def test_a_webhook_removed_while_a_message_is_on_its_way_leaves_nothing_behind(
    engine: Engine, alert: Alert
) -> None:
    hook = make(engine, "https://hook.example/b")
    write(engine, alert)
    claimed = claimed_at(engine, hook.id)
    assert webhooks.remove(engine, hook.id)
    deliveries.delivered(engine, claimed, Try(NOW, 0.2, 200, None))
    deliveries.try_again(engine, claimed, MADE, NOW + 5)
    deliveries.failed(engine, claimed, MADE)
    assert states(engine) == []
    with engine.connect() as connection:
        assert connection.execute(select(try_table)).all() == []


def test_no_more_webhooks_are_made_than_can_be_sent_to_at_once(engine: Engine) -> None:
    register(engine)
    for n in range(webhooks.MAX_WEBHOOKS):
        assert make(engine, f"https://{n}.example/").disabled_reason is None
    with pytest.raises(webhooks.TooManyWebhooks):
        make(engine, "https://x.example/")
    assert len(webhooks.list_webhooks(engine)) == 1 + webhooks.MAX_WEBHOOKS


def test_what_expired_is_due_again_when_a_person_wants_it_but_not_twice(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, replace(alert, expires_at=NOW + 60))
    assert claim(engine, webhook, NOW + 61, 30) is None
    assert states(engine) == ["expired"]
    (listed,) = deliveries.list_deliveries(engine, webhook, 10)["items"]
    again = deliveries.redeliver(engine, listed["id"], NOW + 100)
    assert (again["state"], again["alert"]) == ("pending", alert.id)
    with pytest.raises(deliveries.StillWaiting):
        deliveries.redeliver(engine, listed["id"], NOW + 100)
    claimed = claimed_at(engine, webhook, NOW + 100)
    assert (claimed.alert_id, claimed.tries) == (alert.id, 1)


def test_deliveries_are_listed_newest_first_with_each_try_and_its_wait(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    more = [replace(alert, id=f"more_{n}", incident_id=None) for n in range(4)]
    write(engine, alert, *more)
    first = claimed_at(engine, webhook, NOW + 1)
    deliveries.try_again(engine, first, Try(NOW + 1, 0.5, 500, "answered 500"), NOW - 1)
    second = claimed_at(engine, webhook, NOW + 6.5)
    deliveries.delivered(engine, second, Try(NOW + 6.5, 0.25, 204, None))
    assert first.alert_id == second.alert_id == alert.id
    found = deliveries.list_deliveries(engine, webhook, 2)
    pages = [[item["alert"] for item in found["items"]]]
    while found["next"] is not None:
        found = deliveries.list_deliveries(engine, webhook, 2, found["next"])
        pages.append([item["alert"] for item in found["items"]])
    assert pages == [["more_3", "more_2"], ["more_1", "more_0"], ["msg_1"]]
    (item,) = found["items"]
    assert (item["state"], item["tries"], item["last_status"]) == ("delivered", 2, 204)
    assert [(t["wait_seconds"], t["status"], t["error"]) for t in item["history"]] == [
        (1.0, 500, "answered 500"), (5.0, 204, None),
    ]  # fmt: skip
    assert deliveries.list_deliveries(engine, webhook + 1, 2)["items"] == []
    for wrong in ("", "x", "-1", "9" * 30):
        with pytest.raises(BadCursor):
            deliveries.list_deliveries(engine, webhook, 2, wrong)
