"""The first answers of the pages, on inputs that once got a wrong or a contradicting one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.analysis.builder import (
    EVALUATE,
    GIB,
    MIB,
    TRAIN,
    Leak,
    Training,
    kept_environments,
)
from tests.browser.patience import eventually
from tests.browser.test_page_content import chart
from tests.browser.training import patch, post
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, Snapshot, header_to_wire
from leakline.transport.http_delivery import request_json

Open = Callable[..., Page]
ALL = "?tab=all"
# As long as the generations of a run that somebody waits for.
SECONDS = 60.0


def report(
    server: str,
    *trainings: Training,
    limit: float = 192 * GIB,
    seconds: float = SECONDS,
    more: Callable[[Snapshot], Mapping[str, float]] = lambda snapshot: {},
) -> str:
    """Send what made-up trainings of one run recorded, as if the last snapshot had just been taken."""
    run = trainings[0].run
    last = max(b.snapshots[-1].time for training in trainings for b in training.batches())
    # The builder takes five snapshots a generation, a second apart.
    scale, now = seconds / 5, time.time()

    def moved(snapshot: Snapshot) -> Snapshot:
        at = now - (last - snapshot.time) * scale
        samples = {**snapshot.samples, "cgroup.limit_bytes": limit, **more(snapshot)}
        return replace(snapshot, time=at, monotonic=at, samples=samples)

    header = replace(trainings[0].header(), started_at=now - last * scale)
    post(f"{server}/api/v1/runs", header_to_wire(header))
    for training in trainings:
        for batch in training.batches():
            sent = Batch(batch.process, tuple(map(moved, batch.snapshots)))
            post(f"{server}/api/v1/runs/{run}/batches", batch_to_wire(sent))
    return run


def verdict_of(server: str, run: str, generations: int) -> dict[str, Any]:
    """The verdict once it has seen all of the run."""
    path = f"/runs/{run}/verdict"
    eventually(lambda: request_json(server, "GET", path)["generations"] >= generations)
    found: dict[str, Any] = request_json(server, "GET", path)
    return found


def figure(page: Page, label: str) -> str:
    found = page.locator(".verdict .figures div").filter(has=page.locator("dt", has_text=label))
    return " ".join(found.locator("dd").inner_text().split())


def row_of(page: Page, run: str) -> Any:
    return page.locator(".runs tr").filter(has=page.get_by_role("link", name=run, exact=True))
