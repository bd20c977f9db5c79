"""Webhooks and deliveries as the JSON API takes and gives them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..limits import MAX_TITLE_LENGTH, MAX_WEBHOOK_LENGTH, MAX_WORD_LENGTH
from .schemas import NO_CONTROL, Strict

HookName = Annotated[str, Field(max_length=MAX_TITLE_LENGTH, pattern=NO_CONTROL)]
Address = Annotated[str, Field(min_length=1, max_length=MAX_WEBHOOK_LENGTH)]
Format = Annotated[str, Field(min_length=1, max_length=MAX_WORD_LENGTH, pattern=NO_CONTROL)]


class NewWebhook(Strict):
    """`format` is standard or slack."""

    model_config = ConfigDict(strict=True, extra="forbid")

    url: Address
    name: HookName = ""
    format: Format = "standard"


class WebhookChanges(Strict):
    """Only what is given changes. `enabled` true makes a disabled webhook get alerts again."""

    model_config = ConfigDict(strict=True, extra="forbid")

    url: Address | None = None
    name: HookName | None = None
    format: Format | None = None
    enabled: bool | None = None


class WebhookTrial(BaseModel):
    """What came of a test message. `status` is null when there was no answer."""

    at: str
    seconds: float
    arrived: bool
    status: int | None
    error: str | None


class Webhook(BaseModel):
    """`origin` is all that is ever shown of the address. `failures` counts the tries since the last one that arrived;
    until `previous_until` the secret before the last rotation signs too."""

    id: int
    name: str
    origin: str
    format: str
    source: Literal["environment", "api"]
    enabled: bool
    disabled_reason: str | None
    failures: int
    failing_since: str | None
    previous_until: str | None
    created_at: str
    last_test: WebhookTrial | None


class WebhookWithSecret(Webhook):
    """The only answer that ever shows the secret."""

    secret: str


class Webhooks(BaseModel):
    items: list[Webhook]
    next: None = None


class DeliveryTry(BaseModel):
    """`wait_seconds` is from the end of the try before, or from the alert."""

    started_at: str
    wait_seconds: float
    seconds: float
    status: int | None
    error: str | None


class Delivery(BaseModel):
    """`alert` is the `webhook-id` of all its messages; `history` holds its newest 20 tries."""

    id: int
    webhook: int
    alert: str
    event: str
    title: str
    run: str
    project: str
    run_name: str
    urgent: bool
    created_at: str
    expires_at: str | None
    state: Literal["pending", "claimed", "delivered", "failed", "expired", "superseded"]
    tries: int
    last_status: int | None
    last_error: str | None
    next_try_at: str | None
    delivered_at: str | None
    history: list[DeliveryTry]


class Deliveries(BaseModel):
    items: list[Delivery]
    next: str | None
