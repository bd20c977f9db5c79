"""Deliveries: stored first, claimed by one process at a time, sent at least once and on a schedule."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, select
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from tests.server.access.people import Clock
from tests.server.alerts.conftest import NOW, rows

from leakline_server.alerts.formats import FORMATS, Message
from leakline_server.alerts.sending.address_check import networks
from leakline_server.alerts.sending.http_post import TryAgain, next_wait
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.config import Config
from leakline_server.store.alerts import deliveries, webhooks
from leakline_server.store.alerts.alert_rows import Alert, add, alert_histories
from leakline_server.store.alerts.deliveries import Claimed, Try, claim
from leakline_server.store.engine import writing
from leakline_server.store.runs.runs import BadCursor
from leakline_server.store.schema import alerts as alert_table
from leakline_server.store.schema import delivery_attempts as attempt_table
from leakline_server.store.schema import incidents as incident_table
from leakline_server.store.schema import runs as run_table
from leakline_server.store.schema import webhooks as webhook_table
from leakline_server.workers.delivery_worker import Deliverer, Seams

MADE = Try(NOW, 0.1, 500, "answered 500")


def registration(
    engine: Engine, url: str = "https://hook.example/a", secret: str | None = None
) -> webhooks.Registered:
    return webhooks.register(engine, url, "standard", secret, make_secret, NOW)


def register(engine: Engine, url: str = "https://hook.example/a") -> int:
    return registration(engine, url).webhook.id


def make(engine: Engine, url: str) -> webhooks.Webhook:
    """Add a webhook as a person does, in addition to the one from the environment."""
    return webhooks.make(engine, "chat", url, "standard", make_secret(), NOW)


def write(engine: Engine, *alerts: Alert) -> int:
    with writing(engine) as connection:
        return add(connection, alerts)


def claimed_at(engine: Engine, webhook: int, at: float = NOW) -> Claimed:
    found = claim(engine, webhook, at, 30)
    assert found is not None
    return found


def states(engine: Engine) -> list[str]:
    return [row.state for row in rows(engine)]


def test_rolling_back_a_finding_removes_its_alert(engine: Engine, alert: Alert) -> None:
    register(engine)
    with pytest.raises(ZeroDivisionError), writing(engine) as connection:
        add(connection, [alert])
        raise ZeroDivisionError
    assert rows(engine) == []
    with engine.connect() as connection:
        assert connection.scalars(select(alert_table.c.id)).all() == []


def test_the_same_alert_written_twice_is_delivered_once(engine: Engine, alert: Alert) -> None:
    register(engine)
    assert write(engine, alert) == 1
    assert write(engine, replace(alert, created_at=NOW + 9)) == 0
    assert states(engine) == ["pending"]


def test_the_last_event_and_the_count_of_alerts_are_known_without_a_webhook(
    engine: Engine, alert: Alert
) -> None:
    later = replace(alert, id="msg_2", event="incident.confirmed", created_at=NOW + 1)
    assert write(engine, alert, later) == 0
    with engine.connect() as connection:
        found = alert_histories(connection, alert.run_id)
        assert alert_histories(connection, "another run") == {}
    assert set(found) == {alert.incident_id}
    assert (found["i1"].event, found["i1"].count) == ("incident.confirmed", 2)


def test_only_one_of_many_workers_claims_a_delivery(engine: Engine, alert: Alert) -> None:
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


def test_a_claim_expires_after_its_process_died(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    first = claimed_at(engine, webhook)
    assert claim(engine, webhook, NOW + 29, 30) is None
    again = claimed_at(engine, webhook, NOW + 30)
    assert (first.alert_id, first.attempts) == (alert.id, 1)
    assert (again.alert_id, again.attempts) == (alert.id, 2)


def test_after_losing_a_claim_only_a_success_is_recorded(engine: Engine, alert: Alert) -> None:
    webhook = register(engine)
    write(engine, alert)
    slow, owner = (claimed_at(engine, webhook, at) for at in (NOW, NOW + 30))
    deliveries.failed(engine, slow, MADE)
    deliveries.reschedule(engine, slow, MADE, NOW + 31)
    assert states(engine) == ["claimed"]
    deliveries.delivered(engine, slow, Try(NOW, 0.2, 200, None))
    deliveries.reschedule(engine, owner, MADE, NOW + 35)
    assert states(engine) == ["delivered"]


def test_servers_that_start_together_create_one_secret_and_one_webhook(engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        registered = list(pool.map(lambda _: registration(engine), range(4)))
    assert len([r for r in registered if r.made_secret]) == 1
    assert len({(r.webhook.id, r.webhook.secret) for r in registered}) == 1


def test_a_generated_secret_is_shown_once_and_kept_until_it_is_replaced(engine: Engine) -> None:
    first = registration(engine, "https://a.example/")
    again = registration(engine, "https://b.example/")
    assert first.made_secret == first.webhook.secret == again.webhook.secret
    assert again.made_secret is None
    assert first.made_secret not in repr(first)
    given = make_secret()
    registered = registration(engine, secret=given)
    assert (registered.webhook.secret, registered.made_secret) == (given, None)


@pytest.mark.parametrize("unset", [True, False])
def test_an_address_no_longer_configured_fails_its_pending_deliveries(
    engine: Engine, alert: Alert, unset: bool
) -> None:
    old = register(engine)
    write(engine, alert)
    if unset:
        webhooks.unregister(engine)
    else:
        register(engine, "https://hook.example/new")
    assert claim(engine, old, NOW, 30) is None
    (row,) = rows(engine)
    assert not rows(engine, webhook_table)[0].enabled
    assert row.state == "failed"
    assert "no longer in LEAKLINE_WEBHOOK_URL" in row.last_error
    # The old address in the environment restores the old webhook.
    assert register(engine) == old


def test_a_webhook_disabled_by_410_stays_disabled_after_a_restart(
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
        # Several changes in one message: of two incidents, or of one.
        ({"subject": "digest"}, {"subject": "digest", "incident_id": "i2"}, False),
        ({}, {"subject": "digest"}, True),
    ],
)
def test_a_newer_state_replaces_pending_ones_of_the_same_subject(
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


def test_a_newer_state_replaces_neither_delivered_ones_nor_other_runs(
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


def test_an_expired_claim_is_not_sent_again_if_there_is_a_newer_state(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    write(engine, alert)
    claimed_at(engine, webhook)
    write(engine, replace(alert, id="msg_2", created_at=NOW + 1))
    assert claimed_at(engine, webhook, NOW + 31).alert_id == "msg_2"
    assert states(engine) == ["superseded", "claimed"]


def test_removing_a_webhook_during_a_delivery_leaves_nothing_behind(
    engine: Engine, alert: Alert
) -> None:
    hook = make(engine, "https://hook.example/b")
    write(engine, alert)
    claimed = claimed_at(engine, hook.id)
    assert webhooks.remove(engine, hook.id)
    deliveries.delivered(engine, claimed, Try(NOW, 0.2, 200, None))
    deliveries.reschedule(engine, claimed, MADE, NOW + 5)
    deliveries.failed(engine, claimed, MADE)
    assert rows(engine) == rows(engine, attempt_table) == []


def test_the_number_of_webhooks_is_bounded(engine: Engine) -> None:
    register(engine)
    for n in range(webhooks.MAX_WEBHOOKS):
        assert make(engine, f"https://{n}.example/").disabled_reason is None
    with pytest.raises(webhooks.TooManyWebhooks):
        make(engine, "https://x.example/")
    assert len(webhooks.list_webhooks(engine)) == 1 + webhooks.MAX_WEBHOOKS


def test_an_expired_alert_can_be_sent_again_by_hand_but_not_twice(
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
    assert (claimed.alert_id, claimed.attempts) == (alert.id, 1)


def test_deliveries_are_listed_newest_first_with_their_attempts(
    engine: Engine, alert: Alert
) -> None:
    webhook = register(engine)
    more = [replace(alert, id=f"more_{n}", incident_id=None) for n in range(4)]
    write(engine, alert, *more)
    first = claimed_at(engine, webhook, NOW + 1)
    deliveries.reschedule(engine, first, Try(NOW + 1, 0.5, 500, "answered 500"), NOW - 1)
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
    assert (item["state"], item["attempts"], item["last_status"]) == ("delivered", 2, 204)
    assert [(t["wait_seconds"], t["status"], t["error"]) for t in item["history"]] == [
        (1.0, 500, "answered 500"), (5.0, 204, None),
    ]  # fmt: skip
    assert deliveries.list_deliveries(engine, webhook + 1, 2)["items"] == []
    for wrong in ("", "x", "-1", "9" * 30):
        with pytest.raises(BadCursor):
            deliveries.list_deliveries(engine, webhook, 2, wrong)


# -- the worker that sends them ----------------------------------------------------------------------------

REFUSED = TryAgain("answered 500", 0.0, 500)
HOUR = 3_600.0


def moments(urgent: bool, dice: float = 0.0, at_most: int = 1_000) -> list[float]:
    """Return the seconds from the alert to every attempt if all attempts fail."""
    tried = [0.0]
    while len(tried) < at_most:
        wait = next_wait(len(tried), REFUSED, lambda: dice, urgent=urgent, age_seconds=tried[-1])
        if wait is None:
            break
        tried.append(tried[-1] + wait)
    return tried


@pytest.mark.parametrize("urgent", [True, False])
def test_waits_are_spread_by_at_most_a_fifth(urgent: bool) -> None:
    plain, spread = moments(urgent, 0.0, 6), moments(urgent, 0.999, 6)
    for a, b in zip(plain[1:], spread[1:], strict=True):
        assert 1.15 * a < b < 1.2 * a


def test_an_urgent_alert_is_tried_every_ten_minutes_for_a_day() -> None:
    tried = moments(urgent=True)
    assert {round(b - a) for a, b in pairwise(tried[5:])} == {600}
    assert 24 * HOUR - 600 < tried[-1] <= 24 * HOUR


def test_a_requested_wait_is_never_shorter_than_the_schedule() -> None:
    patient = TryAgain("answered 429", 0.1, 429, 40.0)
    assert next_wait(1, patient, lambda: 0.0) == 40
    assert next_wait(4, patient, lambda: 0.0) == 180


def test_an_alert_sent_again_by_hand_begins_a_new_schedule() -> None:
    tries = [next_wait(n, REFUSED, lambda: 0.0, age_seconds=30 * HOUR) for n in range(1, 7)]
    assert tries == [5, 15, 60, 180, 600, None]


SERVER = "https://leakline.example"
CONFIG = Config(public_url=SERVER, webhook_allow=networks("127.0.0.0/8"))


@pytest.fixture
def due(engine: Engine, alert: Alert) -> Callable[..., tuple[int, str]]:
    """Return a function that writes an alert, due now, for a webhook and returns the webhook's id and secret."""

    def write_to(url: str, *more: Alert, form: str = "standard") -> tuple[int, str]:
        hook = webhooks.register(engine, url, form, None, make_secret, 0.0).webhook
        write(engine, *(replace(a, created_at=time.time()) for a in (alert, *more)))
        return hook.id, hook.secret

    return write_to


def other(alert: Alert, number: int, **changes: Any) -> Alert:
    """Return an alert about something else, which replaces nothing."""
    return replace(alert, id=f"other_{number}", incident_id=None, **changes)


def deliverer(engine: Engine, url: str | None = None, **seams: Any) -> Deliverer:
    return Deliverer(
        engine, replace(CONFIG, webhook_url=url), Seams(**{"dice": lambda: 0.0, **seams})
    )


@contextmanager
def running(sending: Deliverer) -> Iterator[None]:
    sending.start()
    try:
        yield
    finally:
        sending.stop()


def test_a_private_address_fails_without_a_request_and_names_the_setting(
    engine: Engine, due: Any, receiver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    due(receiver.url + "/secret-path")
    assert Deliverer(engine, Config()).run_once(time.time() + 1)
    (row,) = rows(engine)
    assert row.state == "failed"
    assert "LEAKLINE_WEBHOOK_ALLOW=127.0.0.1/32" in row.last_error
    assert "LEAKLINE_WEBHOOK_ALLOW" in caplog.text
    assert "secret-path" not in caplog.text
    assert receiver.received == []


def test_an_unknown_format_fails_visibly(engine: Engine, due: Any, receiver: Any) -> None:
    due(receiver.url, form="pigeon")
    deliverer(engine).run_once(time.time() + 1)
    assert "unknown webhook format 'pigeon'" in rows(engine)[0].last_error


def tried_until_settled(engine: Engine, clock: Clock) -> list[float]:
    """Deliver whenever something is due; return the seconds of all attempts since the first."""
    ids, tried_at, started = set(), [], clock.now

    def refuse(_to: Any, _body: bytes, headers: Mapping[str, str]) -> TryAgain:
        ids.add(headers["webhook-id"])
        return REFUSED

    sending = deliverer(engine, clock=clock, post=refuse)
    while rows(engine)[0].state == "pending":
        clock.now = max(rows(engine)[0].due_at, clock.now)
        tried_at.append(round(clock.now - started))
        assert sending.run_once(clock.now)
        assert not sending.run_once(clock.now), "tried again before its time"
    assert len(ids) == 1
    return tried_at


def test_a_dead_address_is_retried_on_schedule_and_disabled_in_half_a_day(
    engine: Engine, due: Any, caplog: pytest.LogCaptureFixture
) -> None:
    due("http://127.0.0.1:9/hook")
    clock = Clock(time.time() + 1)
    tried_at = tried_until_settled(engine, clock)
    assert tried_at[:8] == [0, 5, 20, 80, 260, 860, 1460, 2060]
    # Every ten minutes, for half a day.
    assert len(tried_at) == 6 + (12 * 3_600 - 860) // 600 + 1
    (row,) = rows(engine)
    assert (row.state, row.attempts, row.last_status) == ("failed", len(tried_at), 500)
    assert [t.status for t in rows(engine, attempt_table)] == [500] * len(tried_at)
    (hook,) = rows(engine, webhook_table)
    assert not hook.enabled
    assert hook.disabled_reason.startswith("all 77 attempts in 12 hours failed; last error: ")
    assert "is disabled: all 77 attempts" in caplog.text
    assert "/alerts" in caplog.text


def test_an_outage_of_a_minute_disables_nothing(engine: Engine, due: Any, alert: Alert) -> None:
    due("http://127.0.0.1:9/hook", *[other(alert, n) for n in range(60)])
    sending, now = deliverer(engine, post=lambda *_: REFUSED), time.time() + 1
    while sending.run_once(now):
        continue
    assert len(rows(engine, attempt_table)) == 61
    assert rows(engine, webhook_table)[0].enabled
    assert {row.state for row in rows(engine)} == {"pending"}


def test_a_message_that_cannot_be_made_is_an_attempt_and_blocks_no_other(
    engine: Engine, due: Any, receiver: Any, alert: Alert, eventually: Any,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    real = FORMATS["standard"]

    def broken(message: Message) -> bytes:
        if message.event == alert.event:
            raise RuntimeError("a bug")
        return real(message)

    monkeypatch.setitem(FORMATS, "standard", broken)
    due(receiver.url, other(alert, 1, event="run.failed"))
    with running(deliverer(engine, receiver.url)):
        eventually(lambda: {row.state for row in rows(engine)} == {"pending", "delivered"})
    (row,) = [row for row in rows(engine) if row.state == "pending"]
    assert row.last_error == "could not be sent: internal server error; see the server's log"
    assert len(rows(engine, attempt_table)) == 2
    assert caplog.text.count("RuntimeError: a bug") == 1
    assert len(receiver.received) == 1


def test_a_thread_that_cannot_be_started_blocks_no_webhook(
    engine: Engine, due: Any, receiver: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    due(receiver.url)
    sending = deliverer(engine)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            sending._dispatch()
    sending._dispatch()
    eventually(lambda: rows(engine)[0].state == "delivered")


def test_an_alert_that_is_not_urgent_uses_the_long_schedule(engine: Engine, alert: Alert) -> None:
    hook = make(engine, "http://127.0.0.1:9/hook")
    clock = Clock(time.time())
    write(engine, replace(alert, urgent=False, created_at=clock.now))
    tried_at = tried_until_settled(engine, clock)
    assert tried_at == [0, 5, 305, 2105, 9305, 27305, 63305, 99305]
    (row,) = rows(engine)
    assert (row.webhook_id, row.state) == (hook.id, "failed")
    assert (row.attempts, row.last_error) == (8, "answered 500")


def test_an_address_that_fails_for_five_days_is_disabled(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url, *[other(alert, n) for n in range(3)])
    receiver.answers = [500]
    sending, started = deliverer(engine), time.time() + 1
    for hours in (0, 60, 119):
        assert sending.run_once(started + hours * 3_600)
        assert rows(engine, webhook_table)[0].enabled
    assert sending.run_once(started + 121 * 3_600)
    (hook,) = rows(engine, webhook_table)
    assert not hook.enabled
    assert hook.disabled_reason.startswith("all 4 attempts in 121 hours failed")
    assert {row.state for row in rows(engine)} == {"failed"}


def test_a_delivery_resets_the_count_of_failures(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url, other(alert, 1))
    receiver.answers = [500, 204, 500]
    sending, now = deliverer(engine), time.time() + 1
    for at, counted in ((now, (1, now)), (now, (0, None)), (now + 30, (1, now + 30))):
        sending.run_once(at)
        (hook,) = rows(engine, webhook_table)
        assert (hook.failures, hook.failing_since) == counted


def test_a_forecast_expires_instead_of_waiting_for_a_late_attempt(
    engine: Engine, alert: Alert
) -> None:
    make(engine, "http://127.0.0.1:9/hook")
    clock = Clock(time.time())
    write(engine, replace(alert, created_at=clock.now, expires_at=clock.now + 300))
    tried_at = tried_until_settled(engine, clock)
    assert tried_at == [0, 5, 20, 80, 260]
    (row,) = rows(engine)
    assert (row.state, row.last_status, row.last_error) == ("expired", 500, "answered 500")
    assert rows(engine, webhook_table)[0].failures == 5


def test_a_newer_state_replaces_one_that_fails_while_it_is_sent(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url)

    def write_more_and_fail(*_: Any) -> Any:
        newer = replace(alert, id="msg_2", event="incident.confirmed", created_at=time.time())
        write(engine, newer)
        return REFUSED

    deliverer(engine, post=write_more_and_fail).run_once(time.time() + 1)
    assert states(engine) == ["superseded", "pending"]
    assert [t.status for t in rows(engine, attempt_table)] == [500]


def test_a_day_after_a_rotation_only_the_new_secret_signs(
    engine: Engine, receiver: Any, alert: Alert
) -> None:
    hook = make(engine, receiver.url)
    new, now = make_secret(), time.time()
    webhooks.rotate(engine, hook.id, new, now - webhooks.ROTATION_SECONDS)
    write(engine, replace(alert, created_at=now))
    assert deliverer(engine).run_once(now)
    (received,) = receiver.received
    assert Verifier(new).verify(received.body, received.headers)
    with pytest.raises(WebhookVerificationError):
        Verifier(hook.secret).verify(received.body, received.headers)


def test_urgent_alerts_do_not_wait_behind_others(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url)
    sending, now = deliverer(engine), time.time() + 1
    sending.run_once(now)
    write(engine, *(other(alert, n, urgent=n == 3, created_at=now) for n in range(4)))
    sending.run_once(now)
    assert receiver.received[-1].headers["webhook-id"] == "other_3"


@pytest.mark.alone
def test_a_woken_worker_sends_and_the_library_verifies_the_message(
    engine: Engine, due: Any, receiver: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the wake-up it would check again after an hour.
    looks, due_times = [], deliveries.due_times

    def look(of: Engine) -> dict[int, float]:
        looks.append(due_times(of))
        return looks[-1]

    monkeypatch.setattr("leakline_server.workers.delivery_worker.POLL_SECONDS", 3_600.0)
    monkeypatch.setattr(deliveries, "due_times", look)
    sending = deliverer(engine, receiver.url)
    with running(sending):
        eventually(lambda: looks)
        _, secret = due(receiver.url)
        sending.wake()
        (received,) = receiver.wait_for(1)
    message = Verifier(secret).verify(received.body, received.headers)
    assert message["data"]["link"] == SERVER + "/runs/r1"
    with pytest.raises(WebhookVerificationError):
        Verifier(secret).verify(received.body.replace(b"Leak", b"Leek"), received.headers)


def test_alerts_of_another_process_are_found_without_a_wake_up(
    engine: Engine, due: Any, receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.workers.delivery_worker.POLL_SECONDS", 0.05)
    with running(deliverer(engine, receiver.url)):
        due(receiver.url)
        receiver.wait_for(1)


@pytest.mark.alone
def test_a_hanging_address_delays_neither_others_nor_the_shutdown(
    engine: Engine, due: Any, receiver: Any, alert: Alert, eventually: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        dead = f"http://127.0.0.1:{hanging.getsockname()[1]}/"
        due(dead)
        hook = make(engine, receiver.url)
        write(engine, other(alert, 2, created_at=time.time()))
        sending = deliverer(engine, dead)
        with running(sending):
            receiver.wait_for(1)
            eventually(
                lambda: (hook.id, "delivered") in [(r.webhook_id, r.state) for r in rows(engine)]
            )
        # The other message is still being sent when the worker has stopped.
        assert sum(row.state == "claimed" for row in rows(engine)) == 1
    # Closing the listener ends the POST that is still open.
    eventually(lambda: {row.state for row in rows(engine)} == {"delivered", "pending"})


def test_an_address_that_will_be_refused_is_logged_at_the_start(
    engine: Engine, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with running(Deliverer(engine, Config(webhook_url="http://127.0.0.1:9/very-secret"))):
        eventually(lambda: "LEAKLINE_WEBHOOK_ALLOW" in caplog.text)
    assert "very-secret" not in caplog.text


def test_a_generated_secret_is_logged_once_and_a_configured_one_never(
    engine: Engine, receiver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    given = make_secret()
    for settings in ({}, {}, {"webhook_secret": given}):
        config = replace(CONFIG, webhook_url=receiver.url, **settings)
        with running(Deliverer(engine, config)):
            pass
    assert caplog.text.count("whsec_") == 1
    assert given not in caplog.text


def test_a_server_without_a_webhook_starts_without_logging_anything(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with running(Deliverer(engine, Config())):
        pass
    assert caplog.text == ""
