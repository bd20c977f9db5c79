"""An open page tells that its run fell silent, takes that back, and shows what a killed run said last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from tests.browser.training import MadeTraining, patch

Train = Callable[..., MadeTraining]
Open = Callable[..., Page]
PATIENCE_MS = 30_000
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"


def says(training: MadeTraining, *lines: str) -> None:
    event = training._event("log", "log", {"lines": list(lines)})
    training._send([training._snapshot("manual", None, "checkpoint", events=(event,))])


def ends(training: MadeTraining, state: str, reason: str = "") -> None:
    told = {"state": state, "reason": reason, "ended_at": training.clock + 2}
    patch(
        f"{training.server}/api/v1/runs/{training.run}",
        told | ({} if state == "running" else {"instance": f"{training.run}-1"}),
    )


def test_a_run_that_speaks_again_is_not_called_silent_any_more(
    train: Train, open_page: Open
) -> None:
    training = train("speaks-again", 3)
    page = open_page("/runs/speaks-again")
    expect(page.locator("#end")).to_have_count(0)
    ends(training, "silent")
    expect(page.locator("#end")).to_contain_text("stopped sending", timeout=PATIENCE_MS)
    expect(page.locator(".facts .state")).to_contain_text("silent since")
    ends(training, "running")
    expect(page.locator("#end")).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.locator(".facts .state")).to_have_text("running")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_killed_run_shows_its_last_reading_and_its_last_line(
    train: Train, open_page: Open, width: int, scheme: str
) -> None:
    run = f"killed-{width}-{scheme}"
    training = train(run, 3)
    says(
        training,
        *(f"step {i}: loss {1 / (i + 1):.3f}" for i in range(48)),
        HOSTILE,
        "the very last line",
    )
    ends(training, "killed", "memory: 191.20 GiB of its limit of 192.00 GiB at the last reading")  # fmt: skip
    page = open_page(f"/runs/{run}", width=width, color_scheme=scheme)
    expect(page.locator(".facts .state")).to_have_text("killed for memory")
    expect(page.locator("#end")).to_contain_text("191.20 GiB of its limit of 192.00 GiB")
    page.locator("#lines").scroll_into_view_if_needed()
    # The table begins at its end, without a script.
    expect(page.get_by_text("the very last line")).to_be_in_viewport()
    expect(page.locator("#lines code", has_text="onerror")).to_have_text(HOSTILE)
    assert "broken" not in page.title()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{training.server}/")
    expect(page.get_by_text("killed for memory").first).to_be_visible()
