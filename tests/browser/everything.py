"""A server with something on every page, for tests that look at all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from tests.browser.conftest import serving
from tests.browser.hostile_labels import LABELS
from tests.browser.patience import eventually
from tests.browser.training import (
    ENVIRONMENT,
    EVALUATE,
    MIB,
    MadeTraining,
    patch,
    post,
)

from leakline.snapshot import (
    Batch,
    Census,
    Holder,
    LargeObject,
    ProcessIdentity,
    Snapshot,
    batch_to_wire,
)
from leakline.transport.http_delivery import request_json

PATIENCE_MS = 30_000
# Page -> its path. Those that need a server without runs are opened on one.
PAGES = {
    "list": "/",
    "nothing found": "/?q=nothing-like-this",
    "live run": "/runs/live",
    "ended run": "/runs/fixed",
    "killed run": "/runs/killed",
    "comparison": "/compare?before=live&after=fixed",
    "overlay": "/overlay?run=live&run=fixed",
    "choosing two": "/compare",
    "incidents": "/incidents",
    "alerts": "/alerts",
    "settings": "/settings",
    "patterns": "/patterns",
    "documents": "/docs",
    "document": "/docs/run-page",
    "reference": "/docs/reference/series",
    "no such document": "/docs/nothing-like-this",
    "no such run": "/runs/nobody",
    "no such page": "/nothing/here",
}
MISSING = ("no such document", "no such run", "no such page")
_WITHOUT_RUNS = ("list", "choosing two", "incidents", "alerts", "settings")
EMPTY = {f"{name}, empty": PAGES[name] for name in _WITHOUT_RUNS}


@dataclass
class World:
    """``address`` of the server with everything, ``empty`` of the one with nothing."""

    address: str
    empty: str
    live: MadeTraining

    def address_of(self, name: str) -> str:
        return self.empty if name in EMPTY else self.address

    def path_of(self, name: str) -> str:
        return EMPTY.get(name) or PAGES[name]


@contextmanager
def everything(folder: Path) -> Iterator[World]:
    for name in ("full", "empty"):
        (folder / name).mkdir()
    with (
        # Nothing listens there, so a delivery has tries that failed.
        serving(folder / "full", LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8") as (address, _),
        serving(folder / "empty") as (empty, _),
    ):
        _add_webhook_and_rule(address)
        live = _trained(
            address, "live", 12, registers_cleanup=True, rich=True, tags=("baseline", "gpu")
        )
        _trained(address, "live", 12, rank=1, leaking=False)
        _trained(address, "fixed", 12, leaking=False).finish()
        _kill(_trained(address, "killed", 3))
        eventually(lambda: request_json(address, "GET", "/incidents")["items"])
        eventually(lambda: request_json(address, "GET", "/runs/fixed/verdict")["generations"])
        yield World(address, empty, live)


def open_all(page: Page) -> None:
    """Everything that is folded is opened, and every chart is drawn."""
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator("svg.main-svg").first).to_be_attached(timeout=PATIENCE_MS)


def _trained(address: str, run: str, generations: int, **options: Any) -> MadeTraining:
    training = MadeTraining(address, run, **options)
    training.start()
    training.run_generations(generations)
    return training


def _kill(training: MadeTraining) -> None:
    lines = {"lines": [f"step {i}: loss {1 / (i + 1):.3f}" for i in range(48)]}
    log = training._event("log", "log", lines)
    training._send([training._snapshot("manual", None, "checkpoint", events=(log,))])
    reason = "memory: 191.20 GiB of its limit of 192.00 GiB at the last reading"
    told = {"state": "killed", "reason": reason, "ended_at": training.clock + 2}
    patch(f"{training.server}/api/v1/runs/{training.run}", told | {"instance": f"{training.run}-1"})


def _add_webhook_and_rule(address: str) -> None:
    post(f"{address}/api/v1/webhooks", {"url": "http://127.0.0.1:9/hook", "name": "nobody"})
    rule = {"name": "Much memory", "series": "process.rss_bytes", "above": "1 GiB", "advice": "Look."}  # fmt: skip
    post(f"{address}/api/v1/rules", rule)


class NamedByOthers(MadeTraining):
    """A leaking training whose type and phase have hostile names."""

    type_name, phase_name = LABELS[1], LABELS[17]

    def _send(self, rows: list[Snapshot]) -> None:
        who = ProcessIdentity(f"{self.run}-1", 0, 4242, "node-7", "main", 1)
        body = json.dumps(batch_to_wire(Batch(who, tuple(rows))))
        for ours, theirs in ((ENVIRONMENT, self.type_name), (EVALUATE, self.phase_name)):
            body = body.replace(ours, json.dumps(theirs)[1:-1])
        post(f"{self.server}/api/v1/runs/{self.run}/batches", json.loads(body))


def add_hostile(address: str) -> None:
    """Runs, a project, tags, rules, types, events, holders, objects and lines by all those names."""
    for number, label in enumerate(LABELS):
        named = {"name": label, "project": label, "tags": [label[:64]], "phases": [label]}
        post(
            f"{address}/api/v1/runs", {"id": f"named-{number}", "started_at": time.time(), **named}
        )
        # The name of a rule goes into messages, so what is not seen is refused there.
        if label.isprintable():
            never = {"name": label, "series": "process.rss_bytes", "above": 1e15}
            post(f"{address}/api/v1/rules", never)
    training = _trained(address, "hostile", 1)
    training._send([_named(training)])
    leaking = NamedByOthers(address, "hostile-leak")
    leaking.start()
    leaking.run_generations(12)
    eventually(lambda: request_json(address, "GET", "/runs/hostile-leak/verdict")["findings"])


def _named(training: MadeTraining) -> Snapshot:
    made = training._snapshot("manual", None, LABELS[0], look=True)
    number = made.sequence
    named = tuple(training._event("mark", label, {}) for label in LABELS)
    lines = training._event("log", "log", {"lines": list(LABELS[:48])})
    return replace(
        made,
        events=tuple(replace(each, sequence=number) for each in (*named, lines)),
        census=Census(number, "full", 1.0, 1_000, tuple((label, 3, 3 * MIB) for label in LABELS)),
        holders=tuple(Holder(number, label, label, 2, MIB) for label in LABELS),
        large_objects=tuple(LargeObject(number, each, MIB, each, each) for each in LABELS[:20]),
    )
