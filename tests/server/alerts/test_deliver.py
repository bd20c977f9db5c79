"""What is due goes out signed, once if all goes well, at least once whatever happens, on a schedule."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, select
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from tests.server.access.people import Clock

from leakline_server.alerts.sending.address_check import networks
from leakline_server.alerts.sending.http_post import TryAgain, next_wait
from leakline_server.alerts.sending.signing import make_secret
from leakline_server.config import Config
from leakline_server.store.alerts import deliveries, webhooks
from leakline_server.store.alerts.alert_rows import Alert, add
from leakline_server.store.engine import open_engine, writing
from leakline_server.store.schema import deliveries as delivery_table
from leakline_server.store.schema import tries as try_table
from leakline_server.store.schema import webhooks as webhook_table
from leakline_server.workers.delivery_worker import LEASE_SECONDS, Deliverer, Seams

REFUSED = TryAgain("answered 500", 0.1, 500)
HOUR = 3_600.0


def moments(urgent: bool, dice: float = 0.0, at_most: int = 1_000) -> list[float]:
    """Return the seconds after the alert of every try of a message that nobody takes."""
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


def test_a_receiver_that_asks_for_patience_gets_it_but_never_less_than_the_schedule() -> None:
    patient = TryAgain("answered 429", 0.1, 429, 40.0)
    assert next_wait(1, patient, lambda: 0.0) == 40
    assert next_wait(4, patient, lambda: 0.0) == 180


def test_what_is_sent_again_by_hand_after_a_day_has_the_first_tries_of_its_schedule() -> None:
    tries = [next_wait(n, REFUSED, lambda: 0.0, age_seconds=30 * HOUR) for n in range(1, 7)]
    assert tries == [5, 15, 60, 180, 600, None]


SERVER = "https://leakline.example"
CONFIG = Config(public_url=SERVER, webhook_allow=networks("127.0.0.0/8"))


def tell(engine: Engine, *alerts: Alert) -> None:
    with writing(engine) as connection:
        add(connection, alerts)


@pytest.fixture
def due(engine: Engine, alert: Alert) -> Callable[..., tuple[int, str]]:
    """Write the alert for a webhook at this url, due now. Gives the webhook's id and secret."""

    def write(url: str, *more: Alert, form: str = "standard") -> tuple[int, str]:
        hook = webhooks.register(engine, url, form, None, make_secret, 0.0).webhook
        tell(engine, *(replace(a, created_at=time.time()) for a in (alert, *more)))
        return hook.id, hook.secret

    return write


def other(alert: Alert, number: int, **changes: Any) -> Alert:
    """An alert about something else, which therefore replaces nothing."""
    return replace(alert, id=f"other_{number}", incident_id=None, **changes)


def deliverer(engine: Engine, url: str | None = None, **seams: Any) -> Deliverer:
    return Deliverer(
        engine, replace(CONFIG, webhook_url=url), Seams(**{"dice": lambda: 0.0, **seams})
    )


def rows(engine: Engine, table: Any = delivery_table) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(table).order_by(table.c.id)))


@contextmanager
def running(*sending: Deliverer) -> Iterator[None]:
    for each in sending:
        each.start()
    try:
        yield
    finally:
        for each in sending:
            each.stop()


def second_webhook(engine: Engine, url: str) -> tuple[int, str]:
    """As people add them: beside that of the environment."""
    hook = webhooks.make(engine, "", url, "standard", make_secret(), 0.0)
    return hook.id, hook.secret


def test_a_private_address_fails_at_once_is_never_called_and_the_setting_is_named(
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


def test_a_name_that_turns_private_before_the_second_try_is_not_called(
    engine: Engine, due: Any, receiver: Any
) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    due(f"http://hook.example:{port}/")
    receiver.answers = [500]
    leads_to = iter(["127.0.0.1", "10.0.0.1"])
    sending = deliverer(engine, resolve=lambda _host: [next(leads_to)])
    assert sending.run_once(time.time() + 1)
    assert sending.run_once(time.time() + 60)
    assert len(receiver.received) == 1
    (row,) = rows(engine)
    assert (row.state, "10.0.0.1" in row.last_error) == ("failed", True)


def test_an_unknown_format_fails_visibly(engine: Engine, due: Any, receiver: Any) -> None:
    due(receiver.url, form="pigeon")
    deliverer(engine).run_once(time.time() + 1)
    assert "unknown webhook format 'pigeon'" in rows(engine)[0].last_error


def tried_until_settled(engine: Engine, sending: Deliverer, clock: Clock) -> list[float]:
    """Deliver at every moment at which something is due. Returns the seconds of the tries after the first."""
    tried_at = []
    started = clock.now
    while rows(engine)[0].state == "pending":
        clock.now = max(rows(engine)[0].due_at, clock.now)
        tried_at.append(round(clock.now - started))
        assert sending.run_once(clock.now)
        assert not sending.run_once(clock.now), "tried again before its time"
    return tried_at


def test_an_address_that_takes_nothing_is_tried_on_schedule_and_disabled_after_half_a_day(
    engine: Engine, due: Any, receiver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    due(receiver.url)
    receiver.answers = [500]
    clock = Clock(time.time() + 1)
    tried_at = tried_until_settled(engine, deliverer(engine, clock=clock), clock)
    assert tried_at[:8] == [0, 5, 20, 80, 260, 860, 1460, 2060]
    # Every ten minutes, until half a day is over.
    assert len(tried_at) == 6 + (12 * 3_600 - 860) // 600 + 1
    (row,) = rows(engine)
    assert (row.state, row.tries, row.last_status) == ("failed", len(tried_at), 500)
    assert [t.status for t in rows(engine, try_table)] == [500] * len(tried_at)
    assert len({r.headers["webhook-id"] for r in receiver.received}) == 1
    (hook,) = rows(engine, webhook_table)
    assert not hook.enabled
    assert hook.disabled_reason.startswith("nothing arrived in 77 tries over 12 hours; the last: ")
    assert "is disabled: nothing arrived" in caplog.text
    assert "/alerts" in caplog.text


def test_an_outage_of_a_minute_disables_nothing_however_many_alerts_meet_it(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url, *[other(alert, n) for n in range(60)])
    receiver.answers = [503]
    sending, now = deliverer(engine), time.time() + 1
    while sending.run_once(now):
        continue
    assert len(receiver.received) == 61
    assert rows(engine, webhook_table)[0].enabled
    assert {row.state for row in rows(engine)} == {"pending"}


def test_a_message_that_cannot_be_sent_is_a_try_that_is_seen(engine: Engine, due: Any) -> None:
    def broken(*_arguments: Any) -> Any:
        raise OverflowError("a year beyond counting")

    due("http://127.0.0.1:9/hook")
    assert deliverer(engine, post=broken).run_once(time.time() + 1)
    (row,) = rows(engine)
    assert (row.state, row.last_error) == ("pending", "it could not be sent: OverflowError")
    assert len(rows(engine, try_table)) == 1


def test_a_thread_that_cannot_be_started_shuts_no_webhook_out(
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


def test_what_is_not_urgent_is_tried_on_the_long_schedule(
    engine: Engine, receiver: Any, alert: Alert
) -> None:
    hook, _ = second_webhook(engine, receiver.url)
    receiver.answers = [500]
    clock = Clock(time.time())
    tell(engine, replace(alert, urgent=False, created_at=clock.now))
    tried_at = tried_until_settled(engine, deliverer(engine, clock=clock), clock)
    assert tried_at == [0, 5, 305, 2105, 9305, 27305, 63305, 99305]
    (row,) = rows(engine)
    assert (row.webhook_id, row.state) == (hook, "failed")
    assert (row.tries, row.last_error) == (8, "answered 500")


def test_an_address_that_failed_for_five_days_is_disabled_before_fifty_tries(
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
    assert hook.disabled_reason.startswith("nothing arrived in 4 tries over 121 hours")
    assert {row.state for row in rows(engine)} == {"failed"}


def test_one_arrival_starts_the_count_of_failures_anew(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url, other(alert, 1))
    receiver.answers = [500, 204, 500]
    sending, now = deliverer(engine), time.time() + 1
    sending.run_once(now)
    (hook,) = rows(engine, webhook_table)
    assert (hook.failures, hook.failing_since) == (1, now)
    sending.run_once(now)
    (hook,) = rows(engine, webhook_table)
    assert (hook.failures, hook.failing_since) == (0, None)
    sending.run_once(now + 30)
    (hook,) = rows(engine, webhook_table)
    assert (hook.failures, hook.failing_since) == (1, now + 30)


def test_a_forecast_whose_time_has_come_is_never_sent(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    now = time.time()
    due(receiver.url, other(alert, 1, expires_at=now + 1_800))
    sending = deliverer(engine)
    assert sending.run_once(now + 1_801)
    assert not sending.run_once(now + 1_801)
    assert [r.headers["webhook-id"] for r in receiver.received] == ["msg_1"]
    assert [row.state for row in rows(engine)] == ["delivered", "expired"]


def test_a_forecast_nobody_took_expires_instead_of_waiting_for_a_try_that_comes_too_late(
    engine: Engine, receiver: Any, alert: Alert
) -> None:
    second_webhook(engine, receiver.url)
    receiver.answers = [500]
    clock = Clock(time.time())
    tell(engine, replace(alert, created_at=clock.now, expires_at=clock.now + 300))
    tried_at = tried_until_settled(engine, deliverer(engine, clock=clock), clock)
    assert tried_at == [0, 5, 20, 80, 260]
    (row,) = rows(engine)
    assert (row.state, row.last_status, row.last_error) == ("expired", 500, "answered 500")
    assert rows(engine, webhook_table)[0].failures == 5


def test_of_an_incident_the_newest_state_goes_out_and_what_waits_is_replaced(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url)
    receiver.answers = [500, 204]
    sending, now = deliverer(engine), time.time() + 1
    sending.run_once(now)
    tell(engine, replace(alert, id="msg_2", event="incident.resolved", created_at=now + 1))
    assert [row.state for row in rows(engine)] == ["superseded", "pending"]
    while sending.run_once(now + 3_600):
        pass
    events = [json.loads(r.body)["type"] for r in receiver.received]
    assert events == ["incident.suspected", "incident.resolved"]
    assert [row.state for row in rows(engine)] == ["superseded", "delivered"]


def test_a_newer_state_written_while_the_older_one_is_sent_in_vain_replaces_it(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url)

    def tell_more_and_fail(*_: Any) -> Any:
        newer = replace(alert, id="msg_2", event="incident.confirmed", created_at=time.time())
        tell(engine, newer)
        return TryAgain("answered 500", 0.1, 500)

    deliverer(engine, post=tell_more_and_fail).run_once(time.time() + 1)
    assert [row.state for row in rows(engine)] == ["superseded", "pending"]
    assert [t.status for t in rows(engine, try_table)] == [500]


def test_a_day_after_a_rotation_only_the_new_secret_signs(
    engine: Engine, receiver: Any, alert: Alert
) -> None:
    hook, old = second_webhook(engine, receiver.url)
    new, now = make_secret(), time.time()
    webhooks.rotate(engine, hook, new, now - webhooks.ROTATION_SECONDS)
    tell(engine, replace(alert, created_at=now))
    assert deliverer(engine).run_once(now)
    (received,) = receiver.received
    assert Verifier(new).verify(received.body, received.headers)
    with pytest.raises(WebhookVerificationError):
        Verifier(old).verify(received.body, received.headers)


def test_what_is_urgent_does_not_wait_behind_what_is_not(
    engine: Engine, due: Any, receiver: Any, alert: Alert
) -> None:
    due(receiver.url)
    sending, now = deliverer(engine), time.time() + 1
    sending.run_once(now)
    tell(engine, *(other(alert, n, urgent=n == 3, created_at=now) for n in range(4)))
    sending.run_once(now)
    assert receiver.received[-1].headers["webhook-id"] == "other_3"


@pytest.mark.parametrize(
    ("answer", "dice", "least", "most"),
    [(500, 0.999, 5.9, 6.5), ((429, {"Retry-After": "40"}), 0.0, 40, 45)],
)
def test_waits_are_spread_and_a_receiver_that_asks_for_patience_gets_it(
    answer: Any, dice: float, least: float, most: float, engine: Engine, due: Any, receiver: Any
) -> None:
    due(receiver.url)
    receiver.answers = [answer]
    now = time.time() + 1
    deliverer(engine, dice=lambda: dice).run_once(now)
    assert least <= rows(engine)[0].due_at - now < most


@pytest.mark.alone
def test_a_running_deliverer_sends_when_it_is_woken_and_the_library_verifies_it(
    engine: Engine, due: Any, receiver: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would look again after an hour."""
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


def test_what_another_process_wrote_is_found_without_being_woken(
    engine: Engine, due: Any, receiver: Any
) -> None:
    with running(deliverer(engine, receiver.url)):
        due(receiver.url)
        receiver.wait_for(1, seconds=5)


@pytest.mark.alone
def test_an_address_that_hangs_delays_neither_another_nor_the_shutdown(
    engine: Engine, due: Any, receiver: Any, alert: Alert, eventually: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        dead = f"http://127.0.0.1:{hanging.getsockname()[1]}/"
        due(dead)
        hook, _ = second_webhook(engine, receiver.url)
        tell(engine, other(alert, 2, created_at=time.time()))
        sending = deliverer(engine, dead)
        with running(sending):
            receiver.wait_for(1)
            eventually(
                lambda: (hook, "delivered") in [(r.webhook_id, r.state) for r in rows(engine)]
            )
        # The other is on its way still, when it has stopped.
        assert sum(row.state == "claimed" for row in rows(engine)) == 1
    # Closing the listener ends the POST that was left behind.
    eventually(lambda: {row.state for row in rows(engine)} == {"delivered", "pending"})


@pytest.mark.long
def test_two_servers_on_one_database_make_each_try_once(
    engine: Engine, due: Any, receiver: Any, alert: Alert, eventually: Any
) -> None:
    messages = 12
    due(receiver.url, *[other(alert, n) for n in range(messages - 1)])
    # Each message is refused once, so the claims of both tries are contended.
    receiver.answers = [*[500] * messages, 204]
    second = open_engine(engine.url.render_as_string(hide_password=False))
    with running(*(deliverer(each, receiver.url) for each in (engine, second))):
        eventually(lambda: all(row.state == "delivered" for row in rows(engine)), 30)
    second.dispose()
    ids = [received.headers["webhook-id"] for received in receiver.received]
    assert len(set(ids)) == messages
    assert sorted(ids) == sorted([*set(ids)] * 2)
    assert len({(r.headers["webhook-id"], r.body) for r in receiver.received}) == messages
    assert len(rows(engine, try_table)) == 2 * messages


def test_an_address_that_will_be_refused_is_told_at_the_start(
    engine: Engine, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with running(Deliverer(engine, Config(webhook_url="http://127.0.0.1:9/very-secret"))):
        eventually(lambda: "LEAKLINE_WEBHOOK_ALLOW" in caplog.text)
    assert "very-secret" not in caplog.text


def test_a_made_secret_is_told_once_and_a_given_one_never(
    engine: Engine, receiver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    given = make_secret()
    for settings in ({}, {}, {"webhook_secret": given}):
        config = replace(CONFIG, webhook_url=receiver.url, **settings)
        with running(Deliverer(engine, config)):
            pass
    assert caplog.text.count("whsec_") == 1
    assert given not in caplog.text


def test_a_server_without_a_webhook_starts_and_says_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with running(Deliverer(engine, Config())):
        pass
    assert caplog.text == ""


KILLED_AFTER_SENDING = """
    import os, signal, sys, time
    from leakline_server.alerts.sending.address_check import networks
    from leakline_server.alerts.sending.http_post import post
    from leakline_server.config import Config
    from leakline_server.store.engine import open_engine
    from leakline_server.workers.delivery_worker import Deliverer, Seams

    def post_and_die(*arguments):
        post(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    engine = open_engine(sys.argv[1])
    seams = Seams(post=post_and_die)
    config = Config(public_url="https://leakline.example", webhook_allow=networks("127.0.0.0/8"))
    Deliverer(engine, config, seams).run_once(time.time())
"""


@pytest.mark.flow
def test_a_process_killed_between_send_and_commit_leaves_a_message_that_comes_again_with_its_id(
    engine: Engine, due: Any, receiver: Any
) -> None:
    _, secret = due(receiver.url)
    url = engine.url.render_as_string(hide_password=False)
    code = textwrap.dedent(KILLED_AFTER_SENDING)
    ended = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(receiver.wait_for(1)) == 1
    assert [row.state for row in rows(engine)] == ["claimed"]
    sending = deliverer(engine)
    assert not sending.run_once(time.time()), "the claim of the dead process still holds"
    assert sending.run_once(time.time() + LEASE_SECONDS + 1)
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert json.loads(first.body) == json.loads(second.body)
    (row,) = rows(engine)
    assert (row.state, row.tries) == ("delivered", 2)
    for request in (first, second):
        assert Verifier(secret).verify(request.body, request.headers)
