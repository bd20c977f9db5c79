"""The delivery of alerts to webhooks, from the database row to the POST.

One dispatching thread polls for due deliveries. Each webhook with due deliveries gets its own thread until they have
been attempted, so an unresponsive address never delays other addresses. The rows are authoritative: no state is kept in
memory that a crash could lose.

1. Claim the webhook's next due delivery (a lease; another process gets nothing).
2. Render the message: the facts of the alert in the webhook's format.
3. Resolve and check the webhook's address, at every attempt.
4. POST, signed with the current time.
5. Record the attempt, and settle the delivery: delivered, due again, failed or expired.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..alerts.formats import Message
from ..alerts.sending import apprise_sender
from ..alerts.sending.address_check import (
    AddressRefused,
    AddressUnknown,
    Resolver,
    check,
    resolve_by_system,
    shown,
)
from ..alerts.sending.http_post import Delivered, GiveUp, Outcome, TryAgain, next_wait, post
from ..alerts.sending.send_message import Outgoing, Post, origin_of, send
from ..alerts.sending.signing import make_secret
from ..config import Config
from ..store.alerts import deliveries, webhooks
from ..store.alerts.deliveries import Claimed, Try
from ..store.engine import DATABASE_ERRORS, Engine, without_content
from ..store.maintenance import quarantine
from ..worker_thread import Worker

# This is longer than the longest POST with its name lookup. A delivery whose process died is due again after this time.
LEASE_SECONDS: Final = 20.0
# Polling is needed because other processes add deliveries without waking this one, and because leases expire.
POLL_SECONDS: Final = 2.0
# The maximum number of webhooks to which alerts are sent at the same time.
MAX_SENDING_THREADS: Final = 64
STOP_SECONDS: Final = 1.0

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Seams:
    """Dependencies that tests replace. ``clock`` returns Unix seconds; ``dice`` returns a number in [0, 1)."""

    clock: Callable[[], float] = time.time
    post: Post = post
    resolve: Resolver = resolve_by_system
    dice: Callable[[], float] = random.random


class Deliverer:
    """Delivers alerts. `start` also registers the webhooks from the environment."""

    def __init__(self, engine: Engine, config: Config, seams: Seams | None = None) -> None:
        self._engine, self._config = engine, config
        self._seams = seams or Seams()
        self._stopping = threading.Event()
        self._sending: set[int] = set()
        self._lock = threading.Lock()
        self._worker = Worker("deliver", self._dispatch, partial(quarantine.after, engine))
        self._warned_of_address = False

    def start(self) -> None:
        """Start delivering. Must be called before the first examination, because an alert goes only to the webhooks
        that are registered when the alert is written.
        """
        self._register()
        self._worker.start()

    def stop(self) -> None:
        """Stop within STOP_SECONDS. A POST in flight is abandoned; its delivery is due again after its lease."""
        self._stopping.set()
        self._worker.stop(STOP_SECONDS)

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def wake(self) -> None:
        """Wake the thread to check for due deliveries; call this after the commit that wrote them."""
        self._worker.wake()

    def run_once(self, now: float) -> bool:
        """Send one due delivery per webhook on the calling thread. Return True if more may be due at ``now``."""
        due = [webhook for webhook, at in deliveries.due_times(self._engine).items() if at <= now]
        sent = [self._deliver_next(webhook, now) for webhook in due]
        return any(sent)

    def _register(self) -> None:
        self._register_webhook()
        self._register_apprise()

    def _register_apprise(self) -> None:
        named, installed = self._config.apprise_urls, apprise_sender.installed()
        urls = named if installed else ()
        registered = webhooks.register_apprise(self._engine, urls, self._seams.clock())
        if not installed and (named or self._has_webhook_by_apprise()):
            log.warning(
                "apprise is not installed, so nothing is sent through it; run: pip install 'leakline[notify]'"
            )
        for hook in registered:
            if hook.disabled_reason is not None:
                log.warning(
                    "%s is disabled (%s); enable it on the page /alerts",
                    apprise_sender.service_of(hook.url),
                    hook.disabled_reason,
                )

    def _has_webhook_by_apprise(self) -> bool:
        hooks = webhooks.list_webhooks(self._engine)
        return any(h.format == apprise_sender.FORMAT and h.disabled_reason is None for h in hooks)

    def _register_webhook(self) -> None:
        url = self._config.webhook_url
        if url is None:
            webhooks.unregister(self._engine)
            return
        secret, form = self._config.webhook_secret, self._config.webhook_format
        now = self._seams.clock()
        registered = webhooks.register(self._engine, url, form, secret, make_secret, now)
        if registered.made_secret is not None:
            log.warning(
                "new webhook secret, shown only once (the receiver needs it to verify messages): %s",
                registered.made_secret,
                extra={"shows_secret": True},
            )
        if registered.webhook.disabled_reason is not None:
            log.warning(
                "webhook %s is disabled (%s); enable it on the page /alerts or with: leakline webhook test",
                shown(url),
                registered.webhook.disabled_reason,
            )

    def _warn_of_refused_address(self) -> None:
        """Log a warning if the webhook's address is refused, so that operators see the problem before the first leak.

        The name may resolve differently later, so each attempt checks the address again.
        """
        url, self._warned_of_address = self._config.webhook_url, True
        if url is not None:
            try:
                check(url, self._config.webhook_allow, self._seams.resolve)
            except (AddressRefused, AddressUnknown) as error:
                log.warning("webhook %s: %s", shown(url), error)

    def _dispatch(self) -> float:
        """Start a thread for each webhook with due deliveries. Return the seconds until the next poll."""
        if not self._warned_of_address:
            self._warn_of_refused_address()
        now = self._seams.clock()
        try:
            times = deliveries.due_times(self._engine)
        except DATABASE_ERRORS as error:
            self._tell(error)
            return POLL_SECONDS
        for webhook, due_at in times.items():
            if due_at <= now:
                self._send_in_background(webhook)
        later = [at - now for at in times.values() if at > now]
        return min([POLL_SECONDS, *later])

    def _tell(self, error: Exception) -> None:
        if not quarantine.is_logged(self._engine, error):
            log.warning(
                "deliveries to webhooks are waiting for the database: %s", without_content(error)
            )

    def _send_in_background(self, webhook: int) -> None:
        with self._lock:
            if webhook in self._sending or len(self._sending) >= MAX_SENDING_THREADS:
                return
            self._sending.add(webhook)
        name = f"leakline-deliver-{webhook}"
        try:
            threading.Thread(target=self._send_all, args=(webhook,), name=name, daemon=True).start()
        except RuntimeError:
            # The system cannot start a thread now. If the webhook stayed in the set, it would get no messages until
            # a restart.
            with self._lock:
                self._sending.discard(webhook)
            raise

    def _send_all(self, webhook: int) -> None:
        # If an alert is damaged, its delivery has been settled as failed, and the next delivery can be sent.
        failed = POLL_SECONDS
        try:
            failed = self._worker.attempt(partial(self._send_due, webhook))
        finally:
            with self._lock:
                self._sending.discard(webhook)
        if not failed:
            # A delivery that became due after this thread's last check got no thread, because the webhook was still in
            # the set, so poll again.
            self.wake()

    def _send_due(self, webhook: int) -> float:
        """Send all due deliveries of the webhook. Return the seconds to wait after a database error, or 0."""
        try:
            while not self._stopping.is_set() and self._deliver_next(webhook, self._seams.clock()):
                pass
        except DATABASE_ERRORS as error:
            self._tell(error)
            return POLL_SECONDS
        return 0.0

    def _deliver_next(self, webhook: int, now: float) -> bool:
        """Perform the steps in the module's docstring for one delivery. Return False if no delivery is due."""
        claimed = deliveries.claim(self._engine, webhook, now, LEASE_SECONDS)
        if claimed is None:
            return False
        seams, outgoing = self._seams, _outgoing(claimed, self._config.address, now)
        outcome: Outcome = TryAgain(
            "could not be sent: internal server error; see the server's log", 0.0
        )
        try:
            outcome = send(
                outgoing, self._config.webhook_allow, now, resolve=seams.resolve, by=seams.post
            )
        finally:
            # Settle the delivery even after an unexpected error; otherwise it would be claimed and sent again forever.
            self._settle(claimed, outcome, now)
        return True

    def _settle(self, claimed: Claimed, outcome: Outcome, started_at: float) -> None:
        error = None if isinstance(outcome, Delivered) else outcome.reason
        made = Try(started_at, outcome.seconds, outcome.status, error)
        if isinstance(outcome, Delivered):
            deliveries.delivered(self._engine, claimed, made)
            return
        hook = claimed.webhook
        place = f"webhook {hook.id} ({origin_of(hook.url, hook.format)})"
        where = f"{claimed.event} to {place}"
        ended_at = started_at + outcome.seconds
        due_at = self._next_try(claimed, outcome, ended_at)
        if due_at is None:
            disable = isinstance(outcome, GiveUp) and outcome.disable
            disabled = deliveries.failed(self._engine, claimed, made, disable)
            log.warning(
                "%s failed permanently after attempt %d: %s", where, claimed.attempts, error
            )
        elif claimed.expires_at is not None and due_at >= claimed.expires_at:
            disabled = deliveries.expired(self._engine, claimed, made)
            log.warning("%s expired after attempt %d: %s", where, claimed.attempts, error)
        else:
            disabled = deliveries.reschedule(self._engine, claimed, made, due_at)
            log.info("%s: %s; next attempt in %.0f s", where, error, due_at - ended_at)
        if disabled is not None:
            log.warning("%s is disabled: %s; enable it again on the page /alerts", place, disabled)

    def _next_try(self, claimed: Claimed, failed: TryAgain | GiveUp, now: float) -> float | None:
        """Return the time of the next attempt in Unix seconds, or None if there are no more attempts."""
        if isinstance(failed, GiveUp):
            return None
        wait = next_wait(
            claimed.attempts,
            failed,
            self._seams.dice,
            urgent=claimed.urgent,
            age_seconds=now - claimed.created_at,
        )
        return None if wait is None else now + wait


def _outgoing(claimed: Claimed, server_url: str, now: float) -> Outgoing:
    message = Message(claimed.event, claimed.created_at, claimed.payload, server_url)
    hook = claimed.webhook
    return Outgoing(
        claimed.alert_id,
        hook.url,
        hook.format,
        hook.secret,
        message,
        hook.previous_secret_at(now),
        hook.configured,
    )
