"""The template context of ``/alerts``, built from webhooks and deliveries in the API's JSON format. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from leakline.text_format import count_of

from ...alerts.formats import FORMATS
from ...store.alerts.webhooks import APPRISE, BY_HAND, NO_LONGER_CONFIGURED, NOT_BY_APPRISE
from ..rendering import number_formats
from ..rendering.page_contexts import Channel
from ..rules.view import RulesSection

Json = Mapping[str, Any]

# Delivery state -> (status that determines the colour, label, explanation).
STATES: Final = {
    "pending": ("watch", "waiting", "The message will be sent at the next attempt."),
    "claimed": ("watch", "being sent", "The message is being sent right now."),
    "delivered": ("ok", "arrived", "The receiver responded with a status from 200 to 299."),
    "failed": ("confirmed", "failed", "The message will not be retried automatically."),
    "expired": ("learning", "expired", "The message became outdated before it could be delivered."),
    "superseded": ("learning", "replaced", "A newer message on the same subject replaced this message."),
}  # fmt: skip
_FORMAT_WORDS: Final = {"": "from the address", "standard": "Standard (JSON)"}


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about the user's last action. ``secret`` is a webhook's new secret, shown only once."""

    text: str
    status: str
    secret: str = ""
    message: str = ""  # the text of the message that was sent
    back: str = ""  # the address of the run page that contained the form


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """The form for a new webhook, with an error if the submitted form was rejected."""

    name: str = ""
    url: str = ""
    format: str = ""  # empty if the address determines the format
    error: str = ""
    back: str = ""  # the address of the run page that contains the form


@dataclass(frozen=True, slots=True)
class FormatChoice:
    value: str
    word: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class HookRow:
    id: int
    name: str
    origin: str
    format: str
    from_environment: bool
    enabled: bool
    status: str
    word: str
    facts: tuple[str, ...]
    can_enable: bool
    can_rotate: bool
    can_delete: bool


@dataclass(frozen=True, slots=True)
class AttemptLine:
    at: str
    clock: str
    text: str


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    id: int
    title: str
    event: str
    href: str
    sent_at: str
    sent: str
    where: str
    status: str
    word: str
    meaning: str
    attempts: tuple[AttemptLine, ...]
    count: str
    last: str
    next_at: str
    next: str
    can_redeliver: bool


@dataclass(frozen=True, slots=True)
class AlertsPage:
    """The template context of ``/alerts``."""

    title: str
    notice: Notice | None
    rules: RulesSection
    hooks: tuple[HookRow, ...]
    form: NewWebhook
    choices: tuple[FormatChoice, ...]
    deliveries: tuple[DeliveryRow, ...]
    more: bool


def alerts_page(
    hooks: Sequence[Json],
    deliveries: Sequence[Json],
    rules: RulesSection,
    *,
    more: bool,
    notice: Notice | None = None,
    form: NewWebhook | None = None,
) -> AlertsPage:
    """Return the template context; ``more`` is True if older deliveries exist."""
    form = form or NewWebhook()
    by_id = {hook["id"]: hook for hook in hooks}
    return AlertsPage(
        title="Alerts",
        notice=notice,
        rules=rules,
        hooks=tuple(map(_hook, hooks)),
        form=form,
        choices=tuple(_choice(name, form.format) for name in ("", *FORMATS)),
        deliveries=tuple(_delivery(each, by_id[each["webhook"]]) for each in deliveries),
        more=more,
    )


def label(hook: Json) -> str:
    """Return a webhook's name, or the origin of a webhook without a name."""
    return str(hook["name"] or hook["origin"])


def _choice(name: str, chosen: str) -> FormatChoice:
    return FormatChoice(name, _word_of(name), name == chosen)


def _word_of(form: str) -> str:
    return _FORMAT_WORDS.get(form, form.capitalize())


def _hook(hook: Json) -> HookRow:
    own = hook["source"] != "environment"
    gone = hook["disabled_reason"] in (NO_LONGER_CONFIGURED, NOT_BY_APPRISE)
    failing = hook["enabled"] and hook["failures"] > 0
    if not hook["enabled"]:
        wanted = hook["disabled_reason"] == BY_HAND
        status, word = "learning" if wanted else "confirmed", "disabled"
    elif failing:
        status, word = "suspected", "failing"
    else:
        status, word = "ok", "enabled"
    return HookRow(
        id=hook["id"],
        name=label(hook),
        origin=hook["origin"],
        format=_word_of(hook["format"]),
        from_environment=not own,
        enabled=hook["enabled"],
        status=status,
        word=word,
        facts=tuple(_hook_facts(hook)),
        can_enable=not gone and hook["format"] in (*FORMATS, APPRISE),
        can_rotate=own,
        can_delete=own or gone,
    )


def _hook_facts(hook: Json) -> list[str]:
    facts = []
    if not hook["enabled"]:
        facts.append(f"Disabled: {hook['disabled_reason']}.")
    elif hook["failures"]:
        attempts = count_of(hook["failures"], "failed attempt")
        facts.append(f"Failing since {_at(hook['failing_since'])}: {attempts}.")
    if hook["previous_until"]:
        facts.append(
            f"Messages are also signed with the previous secret until {_at(hook['previous_until'])}."
        )
    if hook["last_test"]:
        facts.append(_test_fact(hook["last_test"]))
    return facts


def added(made: Json, service: str, back: str, secret: str | None) -> Notice:
    """Return the notice about an added webhook; ``secret`` is None if the webhook already existed.

    ``service`` is the chat service whose address determined the format, or an empty string.
    """
    why = f", in {service}'s format, because the address belongs to {service}" if service else ""
    already = (
        "already receives every alert" if secret is None else "receives every alert from now on"
    )
    said = f"{label(made)} {already}{why}."
    if service or secret is None:
        # Chat services do not verify signatures; instead, their webhook addresses are secret.
        return Notice(said, "ok", back=back)
    said += (
        " Its messages are signed with a secret. Copy the secret to the receiver now, because it is "
        "shown only once:"
    )
    return Notice(said, "ok", secret, back=back)


def tested(hook: Json, made: Json, message: str) -> Notice:
    if made["error"]:
        said = f"The test message did not reach {label(hook)}: {_came(made)}. Undelivered message:"
        return Notice(said, "confirmed", message=message)
    return Notice(
        f"The test message reached {label(hook)}: {_came(made)}. Message sent:",
        "ok",
        message=message,
    )


def channels(hooks: Sequence[Json]) -> tuple[Channel, ...]:
    """Return the alert channels that a run's page shows."""
    return tuple(Channel(row.name, row.word, row.status) for row in map(_hook, hooks))


def _test_fact(made: Json) -> str:
    return f"Last test on {_at(made['at'])}: {_came(made)}."


def _came(made: Json) -> str:
    """Describe the outcome of sending a message."""
    took = number_formats.seconds(made["seconds"])
    if made["error"]:
        return f"{made['error']} ({took})"
    return (
        f"accepted in {took}" if made["status"] is None else f"answered {made['status']} in {took}"
    )


def _delivery(item: Json, hook: Json) -> DeliveryRow:
    status, word, meaning = STATES[item["state"]]
    waiting = item["state"] in ("pending", "claimed")
    return DeliveryRow(
        id=item["id"],
        title=item["title"],
        event=item["event"],
        href=f"/runs/{quote(item['run'], safe='')}",
        sent_at=item["created_at"],
        sent=number_formats.clock(item["created_at"]),
        where=label(hook),
        status=status,
        word=word,
        meaning=meaning,
        attempts=tuple(map(_try, reversed(item["history"]))),
        count=count_of(item["attempts"], "attempt"),
        last=_last(item),
        next_at=item["next_attempt_at"] or "",
        next=number_formats.clock(item["next_attempt_at"]),
        can_redeliver=hook["enabled"] and not waiting,
    )


def _try(made: Json) -> AttemptLine:
    waited = number_formats.seconds(made["wait_seconds"])
    return AttemptLine(
        made["started_at"],
        number_formats.clock(made["started_at"]),
        f"after a wait of {waited}: {_came(made)}",
    )


def _last(item: Json) -> str:
    if item["last_status"] is not None:
        return str(item["last_status"])
    return item["last_error"] or ("accepted" if item["state"] == "delivered" else "–")


def _at(iso: str) -> str:
    return number_formats.clock(iso)
