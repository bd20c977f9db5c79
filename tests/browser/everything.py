"""A server with something on every page, for tests that visit all pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browser.conftest import serving
from tests.browser.hostile_labels import LABELS
from tests.browser.patience import eventually
from tests.browser.training import ENVIRONMENT, EVALUATE, MadeTraining, patch, post
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, ProcessIdentity, Snapshot
from leakline.transport.http_delivery import request_json

# Page -> its path. Pages that also exist without runs are visited on an empty server too.
PAGES = {
    "list": "/",
    "nothing found": "/?q=nothing-like-this",
    "live run": "/runs/live",
    "ended run": "/runs/fixed",
    "killed run": "/runs/killed",
    "range of a run": "/runs/fixed?x=2..6",
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
    "search in documents": "/docs?q=memory",
    "no such document": "/docs/nothing-like-this",
    "no such run": "/runs/nobody",
    "no such page": "/nothing/here",
}
MISSING = ("no such document", "no such run", "no such page")
_WITHOUT_RUNS = ("list", "choosing two", "incidents", "alerts", "settings")
EMPTY = {f"{name}, empty": PAGES[name] for name in _WITHOUT_RUNS}


@dataclass
class World:
    """Two servers: ``address`` has something on every page, ``empty`` has nothing."""

    address: str
    empty: str
    live: MadeTraining
    second_rank: MadeTraining

    def run_generation(self) -> None:
        """Run the next generation of both ranks; the total is known only where both have ended one."""
        self.live.run_generation()
        self.second_rank.run_generation()

    def address_of(self, name: str) -> str:
        return self.empty if name in EMPTY else self.address

    def path_of(self, name: str) -> str:
        return EMPTY.get(name) or PAGES[name]


@contextmanager
def everything(folder: Path) -> Iterator[World]:
    for name in ("full", "empty"):
        (folder / name).mkdir()
    with (
        # Nothing listens at the webhook's address, so that a delivery has failed attempts.
        serving(folder / "full", LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8") as address,
        serving(folder / "empty") as empty,
    ):
        _add_webhook_and_rule(address)
        live = trained(
            address, "live", 12, registers_cleanup=True, rich=True, tags=("baseline", "gpu")
        )
        second_rank = trained(address, "live", 12, rank=1, leaking=False)
        trained(address, "fixed", 12, leaking=False).finish()
        _kill(trained(address, "killed", 3))
        eventually(lambda: request_json(address, "GET", "/incidents")["items"])
        eventually(lambda: request_json(address, "GET", "/runs/fixed/verdict")["generations"])
        yield World(address, empty, live, second_rank)


def trained(address: str, run: str, generations: int, **options: Any) -> MadeTraining:
    training = MadeTraining(address, run, **options)
    training.start()
    training.run_generations(generations)
    return training


def _kill(training: MadeTraining) -> None:
    lines = {"lines": [f"step {i}: loss {1 / (i + 1):.3f}" for i in range(48)]}
    log = training._event("log", "log", lines)
    training._send([training._snapshot("manual", None, "checkpoint", events=(log,))])
    reason = "memory: 191.20 GiB of the 192.00 GiB limit was in use at the last reading"
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
