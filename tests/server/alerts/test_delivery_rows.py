"""An alert is a row first, and one delivery belongs to one process at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from leakline_server.alerts.signing import make_secret
from leakline_server.store import deliveries, delivery_list, webhook_changes, webhooks
from leakline_server.store.alerts import Alert, add, told
from leakline_server.store.deliveries import Try, claim
from leakline_server.store.engine import writing
from leakline_server.store.runs import BadCursor
from leakline_server.store.tables import alerts as alert_table
from leakline_server.store.tables import deliveries as delivery_table
from leakline_server.store.tables import incidents as incident_table
from leakline_server.store.tables import runs as run_table
from leakline_server.store.tables import tries as try_table
from leakline_server.store.tables import webhooks as webhook_table

NOW = 1_760_000_000.0
MADE = Try(NOW, 0.1, 500, "answered 500")


def register(engine: Engine, url: str = "https://hook.example/a") -> int:
    return webhooks.register(engine, url, "standard", None, make_secret, NOW).webhook.id


def write(engine: Engine, *alerts: Alert) -> int:
    with writing(engine) as connection:
        return add(connection, alerts)


def states(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(
            connection.scalars(select(delivery_table.c.state).order_by(delivery_table.c.id))
        )


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


def test_without_a_webhook_the_alert_is_still_a_row(engine: Engine, alert: Alert) -> None:
    assert write(engine, alert) == 0
    with engine.connect() as connection:
        (of_incident,) = told(connection, alert.run_id).values()
    assert (of_incident.event, of_incident.count) == ("incident.suspected", 1)


def test_what_was_told_is_the_last_event_and_how_many(engine: Engine, alert: Alert) -> None:
    write(engine, alert, replace(alert, id="msg_2", event="incident.confirmed", created_at=NOW + 1))
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
    first = claim(engine, webhook, NOW, 30)
    assert claim(engine, webhook, NOW + 29, 30) is None
    again = claim(engine, webhook, NOW + 30, 30)
    assert first is not None
    assert again is not None
    assert (first.alert_id, first.tries) == (alert.id, 1)
    assert (again.alert_id, again.tries) == (alert.id, 2)


def test_who_lost_a_claim_can_no_longer_fail_it_but_can_still_say_that_it_arrived(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert)
    slow = claim(engine, webhook, NOW, 30)
    owner = claim(engine, webhook, NOW + 30, 30)
    assert slow is not None
    assert owner is not None
    deliveries.failed(engine, slow, MADE)
    deliveries.try_again(engine, slow, MADE, NOW + 31)
    assert states(engine) == ["claimed"]
    deliveries.delivered(engine, slow, Try(NOW, 0.2, 200, None))
    deliveries.try_again(engine, owner, MADE, NOW + 35)
    assert states(engine) == ["delivered"]


def test_every_try_is_a_row_with_its_status_and_seconds(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    for at, finish in ((NOW, None), (NOW + 5, 200)):
        claimed = claim(engine, webhook, at, 30)
        assert claimed is not None
        if finish is None:
            deliveries.try_again(engine, claimed, MADE, NOW + 5)
        else:
            deliveries.delivered(engine, claimed, Try(at, 0.25, finish, None))
    with engine.connect() as connection:
        rows = connection.execute(select(try_table).order_by(try_table.c.id)).all()
        delivery = connection.execute(select(delivery_table)).one()
    assert [(r.status, r.seconds, r.error) for r in rows] == [
        (500, 0.1, "answered 500"), (200, 0.25, None),
    ]  # fmt: skip
    assert (delivery.state, delivery.tries, delivery.last_status, delivery.delivered_at) == (
        "delivered", 2, 200, NOW + 5.25,
    )  # fmt: skip


def test_servers_that_start_together_make_one_secret_and_one_webhook(engine: Engine) -> None:
    def start(_: int) -> webhooks.Registered:
        return webhooks.register(
            engine, "https://hook.example/", "standard", None, make_secret, NOW
        )

    with ThreadPoolExecutor(4) as pool:
        registered = list(pool.map(start, range(4)))
    assert len([r for r in registered if r.made_secret]) == 1
    assert len({(r.webhook.id, r.webhook.secret) for r in registered}) == 1


def test_a_made_secret_is_shown_once_and_stays_the_same(engine: Engine) -> None:
    first = webhooks.register(engine, "https://a.example/", "standard", None, make_secret, NOW)
    again = webhooks.register(engine, "https://b.example/", "standard", None, make_secret, NOW)
    assert first.made_secret == first.webhook.secret == again.webhook.secret
    assert again.made_secret is None
    assert first.made_secret not in repr(first)


def test_a_given_secret_replaces_the_made_one(engine: Engine) -> None:
    register(engine)
    given = make_secret()
    registered = webhooks.register(
        engine, "https://hook.example/a", "standard", given, make_secret, NOW
    )
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
        assert connection.scalar(
            select(webhook_table.c.enabled).where(webhook_table.c.id == old)
        ) in (0, False)
    assert row.state == "failed"
    assert "no longer in LEAKLINE_WEBHOOK_URL" in row.last_error
    assert register(engine) == old, (
        "the old address in the environment again is the old webhook again"
    )


def test_a_receiver_that_wanted_no_more_stays_disabled_over_a_restart(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert, replace(alert, id="msg_2", incident_id=None))
    claimed = claim(engine, webhook, NOW, 30)
    assert claimed is not None
    deliveries.failed(engine, claimed, Try(NOW, 0.1, 410, "answered 410 Gone"), disable=True)
    assert states(engine) == ["failed", "failed"]
    registered = webhooks.register(
        engine, "https://hook.example/a", "standard", None, make_secret, NOW
    )
    assert registered.webhook.disabled_reason == "answered 410 Gone"
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
    claimed = claim(engine, webhook, NOW, 30)
    assert claimed is not None
    deliveries.delivered(engine, claimed, Try(NOW, 0.2, 200, None))
    write(engine, replace(alert, id="msg_3", **RUN))
    assert states(engine) == ["delivered", "pending", "pending"]


def test_a_claim_that_ran_out_is_not_sent_again_when_there_is_a_newer_state(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert)
    assert claim(engine, webhook, NOW, 30) is not None
    write(engine, replace(alert, id="msg_2", created_at=NOW + 1))
    newest = claim(engine, webhook, NOW + 31, 30)
    assert newest is not None
    assert newest.alert_id == "msg_2"
    assert states(engine) == ["superseded", "claimed"]


def test_a_webhook_removed_while_a_message_is_on_its_way_leaves_nothing_behind(
    engine: Engine, alert: Alert
) -> None:
    hook = webhook_changes.make(
        engine, "chat", "https://hook.example/b", "standard", make_secret(), NOW
    )
    write(engine, alert)
    claimed = claim(engine, hook.id, NOW, 30)
    assert claimed is not None
    assert webhook_changes.remove(engine, hook.id)
    deliveries.delivered(engine, claimed, Try(NOW, 0.2, 200, None))
    deliveries.try_again(engine, claimed, MADE, NOW + 5)
    deliveries.failed(engine, claimed, MADE)
    assert states(engine) == []
    with engine.connect() as connection:
        assert connection.execute(select(try_table)).all() == []


def test_no_more_webhooks_are_made_than_can_be_sent_to_at_once(engine: Engine) -> None:
    register(engine)
    for n in range(webhook_changes.MAX_WEBHOOKS):
        made = webhook_changes.make(
            engine, "", f"https://{n}.example/", "standard", make_secret(), NOW
        )
        assert made.disabled_reason is None
    with pytest.raises(webhook_changes.TooManyWebhooks):
        webhook_changes.make(engine, "", "https://x.example/", "standard", make_secret(), NOW)
    assert len(webhooks.list_webhooks(engine)) == 1 + webhook_changes.MAX_WEBHOOKS


def test_what_expired_is_due_again_when_a_person_wants_it_but_not_twice(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, replace(alert, expires_at=NOW + 60))
    assert claim(engine, webhook, NOW + 61, 30) is None
    assert states(engine) == ["expired"]
    (listed,) = delivery_list.list_deliveries(engine, webhook, 10)["items"]
    again = delivery_list.redeliver(engine, listed["id"], NOW + 100)
    assert (again["state"], again["alert"]) == ("pending", alert.id)
    with pytest.raises(delivery_list.StillWaiting):
        delivery_list.redeliver(engine, listed["id"], NOW + 100)
    claimed = claim(engine, webhook, NOW + 100, 30)
    assert claimed is not None
    assert (claimed.alert_id, claimed.tries) == (alert.id, 1)


def test_deliveries_are_listed_newest_first_with_each_try_and_its_wait(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    more = [replace(alert, id=f"more_{n}", incident_id=None) for n in range(4)]
    write(engine, alert, *more)
    for at, status in ((NOW + 1, 500), (NOW + 6.5, 204)):
        claimed = claim(engine, webhook, at, 30)
        assert claimed is not None
        assert claimed.alert_id == alert.id
        if status == 500:
            deliveries.try_again(engine, claimed, Try(at, 0.5, 500, "answered 500"), NOW - 1)
        else:
            deliveries.delivered(engine, claimed, Try(at, 0.25, 204, None))
    pages, cursor = [], None
    while True:
        found = delivery_list.list_deliveries(engine, webhook, 2, cursor)
        pages.append([item["alert"] for item in found["items"]])
        cursor = found["next"]
        if cursor is None:
            break
    assert pages == [["more_3", "more_2"], ["more_1", "more_0"], ["msg_1"]]
    (item,) = found["items"]
    assert (item["state"], item["tries"], item["last_status"]) == ("delivered", 2, 204)
    assert [(t["wait_seconds"], t["status"], t["error"]) for t in item["history"]] == [
        (1.0, 500, "answered 500"), (5.0, 204, None),
    ]  # fmt: skip
    assert delivery_list.list_deliveries(engine, webhook + 1, 2)["items"] == []
    for wrong in ("", "x", "-1", "9" * 30):
        with pytest.raises(BadCursor):
            delivery_list.list_deliveries(engine, webhook, 2, wrong)
