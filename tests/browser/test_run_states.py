"""The state of a run in live mark, list and open page: an ended, killed or silent run is never shown as live."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.patience import PATIENCE_MS, drag, fits
from tests.browser.test_live_pages import wait_for_points
from tests.browser.training import MadeTraining, patch

Train = Callable[..., MadeTraining]
Open = Callable[..., Page]
MEMORY = "memory: 191.20 GiB of the 192.00 GiB limit was in use at the last reading"
SILENT = re.compile(r"^Silent since \d{1,2}:\d{2}")


def mark(page: Page, state: str) -> Locator:
    found = page.locator("#live")
    expect(found).to_have_attribute("data-live", state, timeout=PATIENCE_MS)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [("killed", MEMORY, "Killed"), ("silent", "", SILENT), ("finished", "", "Ended")],
)
def test_a_page_opened_after_the_end_never_says_live(
    train: Train, open_page: Open, state: str, reason: str, word: str | re.Pattern[str]
) -> None:
    training = train(f"stands-{state}", 2)
    ends(training, state, reason)
    page = open_page("/")
    # Record the texts of the mark from the first moment.
    page.context.add_init_script("""
        window.said = [];
        new MutationObserver(() => {
            const mark = document.getElementById("live");
            if (mark) window.said.push(mark.textContent);
        }).observe(document, { childList: true, subtree: true, characterData: true });
    """)
    page.goto(f"{training.server}/runs/{training.run}")
    expect(page.locator("#live")).to_have_text(word, timeout=PATIENCE_MS)
    wait_for_points(page, 2)
    expect(page.locator("#live")).to_have_text(word)
    said = page.evaluate("window.said")
    assert said
    assert not {"Live", "Not connected"} & set(said)


@pytest.mark.long
def test_a_run_presumed_killed_is_live_again_when_it_sends(train: Train, open_page: Open) -> None:
    training = train("end_inferred", 3)
    page = open_page("/runs/end_inferred")
    expect(mark(page, "live")).to_have_text("Live")
    ends(training, "killed", MEMORY)
    expect(mark(page, "killed")).to_have_text("Killed")
    expect(page.locator(".facts .state")).to_have_text("killed for memory", timeout=PATIENCE_MS)
    # Nobody can answer requests.
    expect(page.locator("[data-ask]")).to_have_count(0)

    training.run_generation()
    expect(mark(page, "live")).to_have_text("Live")
    expect(page.locator(".facts .state")).to_have_text("running", timeout=PATIENCE_MS)
    expect(page.locator("[data-ask=census]")).to_be_visible()
    wait_for_points(page, 4)


@pytest.mark.long
def test_a_silent_run_shows_since_when_and_can_be_live_again(train: Train, open_page: Open) -> None:
    training = train("falls-silent", 3)
    page = open_page("/runs/falls-silent?tab=events")
    mark(page, "live")
    expect(page.locator("#end")).to_have_count(0)
    ends(training, "silent")
    expect(mark(page, "silent")).to_have_text(SILENT)
    expect(page.locator("#end")).to_contain_text("stopped sending", timeout=PATIENCE_MS)
    expect(page.locator(".facts .state")).to_contain_text("silent since")
    training.run_generation()
    expect(mark(page, "live")).to_have_text("Live")
    expect(page.locator("#end")).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.locator(".facts .state")).to_have_text("running")


@pytest.mark.long
def test_a_paused_page_shows_that_its_run_was_killed(train: Train, open_page: Open) -> None:
    training = train("killed-while-paused", 4)
    page = open_page("/runs/killed-while-paused?tab=events")
    mark(page, "live")
    wait_for_points(page, 4)
    drag(page, "trend")
    mark(page, "paused")
    ends(training, "killed", MEMORY)
    expect(mark(page, "killed")).to_have_text("Killed, paused")
    expect(page.locator("#end")).to_be_visible(timeout=PATIENCE_MS)
    training.run_generation()
    expect(mark(page, "paused")).to_contain_text("new")


@pytest.mark.long
def test_the_last_verdict_is_shown_after_the_end_of_a_run(train: Train, open_page: Open) -> None:
    training = train("just-ended", 1)
    page = open_page("/runs/just-ended")
    mark(page, "live")
    training.run_generations(10)
    training.finish()
    mark(page, "ended")
    expect(page.locator("#verdict-sentence")).to_contain_text(
        "TradingEnvironment", timeout=PATIENCE_MS
    )
    page.reload()
    mark(page, "ended")
    # A page opened shortly after the end still receives later changes.
    page.evaluate("window.same = true")
    patch(f"{training.server}/api/v1/runs/just-ended", {"name": "renamed since"})
    expect(page.locator("h1")).to_contain_text("renamed since", timeout=PATIENCE_MS)
    assert page.evaluate("window.same")


@pytest.mark.long
def test_the_open_list_follows_the_states_of_its_runs(train: Train, open_page: Open) -> None:
    training = train("listed", 2)
    page = open_page("/?q=listed")
    state = page.locator("tr", has_text="listed").locator(".state")
    expect(state).to_have_text("running")
    for told, reason, words in (
        ("silent", "", re.compile("^silent since .*\\d")),
        ("running", "", "running"),
        ("killed", MEMORY, "killed for memory"),
    ):
        ends(training, told, reason)
        expect(state).to_have_text(words, timeout=PATIENCE_MS)
    training.run_generation()
    expect(state).to_have_text("running", timeout=PATIENCE_MS)


@pytest.mark.long
def test_the_silent_since_text_fits_its_column(train: Train, open_page: Open) -> None:
    ends(train("silent-in-the-list", 2), "silent")
    page = open_page("/?q=silent-in-the-list", width=1000)
    state = page.locator(".state")
    expect(state).to_contain_text("silent since")
    # The date is included for another day: the longest text, which is cut off at the end of the column.
    page.locator(".state time").evaluate("it => { it.textContent = 'Nov 24, 2026, 12:04:05 PM'; }")
    column = page.locator("td:has(> .state)")
    assert column.evaluate("it => getComputedStyle(it).overflowX") == "hidden"
    expect(column).to_have_attribute("title", re.compile("^silent"))


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


def test_a_killed_run_shows_its_last_reading_and_its_last_line(
    train: Train, open_page: Open
) -> None:
    training = train("last-words", 3)
    says(
        training,
        *(f"step {i}: loss {1 / (i + 1):.3f}" for i in range(48)),
        HOSTILE,
        "the very last line",
    )
    ends(training, "killed", MEMORY)
    page = open_page("/runs/last-words?tab=events", width=390)
    expect(page.locator(".facts .state")).to_have_text("killed for memory")
    expect(page.locator("#end")).to_contain_text("191.20 GiB of the 192.00 GiB limit")
    page.locator("#lines").scroll_into_view_if_needed()
    # The table is scrolled to its end, without a script.
    expect(page.get_by_text("the very last line")).to_be_in_viewport()
    expect(page.locator("#lines code", has_text="onerror")).to_have_text(HOSTILE)
    assert "broken" not in page.title()
    assert fits(page, 390)
    page.goto(f"{training.server}/")
    expect(page.get_by_text("killed for memory").first).to_be_visible()
