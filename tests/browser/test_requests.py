"""Buttons that request a census, holders or a cleanup from a training: the page shows and announces the outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from tests.browser.patience import PATIENCE_MS, fits, until
from tests.browser.training import ENVIRONMENT, MadeTraining

Train = Callable[..., MadeTraining]
Open = Callable[..., Page]
KINDS = ("census", "find_holders")
WAITING = "Waiting for the training process to answer at its next phase end."


@pytest.fixture
def leaking(train: Train) -> Callable[[str], MadeTraining]:
    """Start a live run with both buttons: the holder of its leak is unknown."""
    return lambda run: train(run, 8, tells_holders=False)


def button(page: Page, kind: str) -> Locator:
    return page.locator(f"[data-ask={kind}]")


def words(page: Page, kind: str) -> Locator:
    """Return the text next to the button."""
    return page.locator(f":has(> [data-ask={kind}]) > [data-asked]")


def voice(page: Page) -> Locator:
    return page.locator("#run > [aria-live=polite]")


def press(page: Page, kind: str) -> None:
    # The button appears with the verdict, after the first paint.
    expect(button(page, kind)).to_be_visible(timeout=PATIENCE_MS)
    button(page, kind).click()


def requests_of_persons(training: MadeTraining) -> list[tuple[str, str | None]]:
    """Return the requests of persons that the training receives with its next batch."""
    training.run_generation()
    asked = [each for each in training.requests if each["asked_by"] == "person"]
    return [(each["kind"], each.get("type")) for each in asked]


def redraw(page: Page, training: MadeTraining, kind: str) -> None:
    """Wait until the next generation has replaced the button and its surroundings."""
    state = page.locator('[data-part="state"]')
    before, drawn = button(page, kind).element_handle(), state.text_content()
    training.run_generation()
    until(page, lambda: state.text_content() != drawn)
    # Buttons in the header stay: nothing around them has changed.
    if kind == "find_holders":
        until(page, lambda: not before.evaluate("(button) => button.isConnected"))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_shown_as_waiting_until_the_training_answers(
    leaking: Callable[[str], MadeTraining], open_page: Open, kind: str
) -> None:
    run = f"waits-{kind}"
    training = leaking(run)
    page = open_page(f"/runs/{run}", width=390, height=844)
    press(page, kind)
    expect(words(page, kind)).to_have_text(WAITING)
    expect(words(page, kind)).to_be_in_viewport()
    assert fits(page, 390)
    redraw(page, training, kind)
    expect(words(page, kind)).to_have_text(WAITING)
    expect(page.locator("[data-asked]")).to_have_count(1)
    wanted = ENVIRONMENT if kind == "find_holders" else None
    assert requests_of_persons(training) == [(kind, wanted)]


@pytest.mark.long
def test_an_answer_is_shown_and_announced_without_a_reload(
    leaking: Callable[[str], MadeTraining], open_page: Open
) -> None:
    training = leaking("answers")
    page = open_page("/runs/answers")
    page.evaluate("window.same = true")
    # The live region exists before its text and is never replaced, or screen readers would not announce it.
    expect(voice(page)).to_have_text("")
    region = voice(page).element_handle()
    for kind in KINDS:
        press(page, kind)
        expect(words(page, kind)).to_have_text(WAITING)
    training.tells_holders = True
    training.run_generation()
    training.answer_requests()
    for kind in KINDS:
        expect(words(page, kind)).to_have_text(
            "The training process answered: done.", timeout=PATIENCE_MS
        )
    expect(page.locator("#holders")).to_contain_text("Trainer.population_history[*]")
    expect(voice(page)).to_contain_text("The training process answered: done.")
    assert region.evaluate("(region) => region.isConnected")
    assert page.evaluate("window.same === true")


@pytest.mark.long
def test_the_keyboard_reaches_the_button_and_stays_on_it(
    leaking: Callable[[str], MadeTraining], open_page: Open
) -> None:
    kind = "find_holders"
    training = leaking("keys")
    page = open_page("/runs/keys")
    expect(button(page, kind)).to_be_visible(timeout=PATIENCE_MS)
    here = f"document.activeElement.dataset.ask === '{kind}'"
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate(here):
            break
    expect(button(page, kind)).to_be_focused()
    # A live update redraws the button between two key presses.
    redraw(page, training, kind)
    expect(button(page, kind)).to_be_focused()
    page.keyboard.press("Enter")
    expect(words(page, kind)).to_have_text(WAITING)
    expect(button(page, kind)).to_be_focused()
    redraw(page, training, kind)
    expect(button(page, kind)).to_be_focused()


@pytest.mark.long
def test_a_lost_focus_is_not_restored(
    leaking: Callable[[str], MadeTraining], open_page: Open
) -> None:
    training = leaking("left")
    page = open_page("/runs/left")
    expect(button(page, "find_holders")).to_be_visible(timeout=PATIENCE_MS)
    button(page, "find_holders").focus()
    page.locator("#verdict-sentence").click()
    redraw(page, training, "find_holders")
    assert page.evaluate("document.activeElement === document.body")


@pytest.mark.long
def test_a_registered_cleanup_can_be_requested(train: Train, open_page: Open) -> None:
    train("keeps", 1)
    expect(button(open_page("/runs/keeps"), "cleanup")).to_have_count(0)
    training = train("cleans", 1, registers_cleanup=True)
    page = open_page("/runs/cleans")
    for kind in ("census", "cleanup"):
        press(page, kind)
    # Both are in the header, so each message names its button.
    expect(words(page, "cleanup")).to_have_text(
        [f"Clean up: {WAITING}", f"Take a census: {WAITING}"]
    )
    assert requests_of_persons(training) == [("census", None), ("cleanup", None)]
    training.answer_requests()
    answer = "The training process answered: done."
    expect(words(page, "cleanup")).to_have_text(
        [f"Clean up: {answer}", f"Take a census: {answer}"], timeout=PATIENCE_MS
    )


def test_an_ended_run_refuses_a_request_in_one_line(train: Train, open_page: Open) -> None:
    training = train("over", 3)
    page = open_page("/runs/over", expect_failed_requests=True)
    expect(page.locator("#live")).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
    page.keyboard.press("l")
    expect(page.locator("#live")).to_have_attribute("data-live", "paused")
    # A paused page would also show the end and remove its buttons, so updates are blocked.
    page.route("**/fragments*", lambda route: route.abort())
    training.finish()
    press(page, "census")
    refusal = "Not requested: run over is finished, so no process can receive the request."
    expect(words(page, "census")).to_have_text(refusal)
    expect(voice(page)).to_have_text(refusal)


def test_an_unreachable_server_is_reported_at_the_button(train: Train, open_page: Open) -> None:
    train("alone")
    page = open_page("/runs/alone", expect_failed_requests=True)
    expect(button(page, "census")).to_be_visible(timeout=PATIENCE_MS)
    page.context.set_offline(True)
    press(page, "census")
    gone = "Not requested: the server is not responding."
    expect(words(page, "census")).to_have_text(gone)
    expect(voice(page)).to_have_text(gone)


def test_an_answer_without_json_is_a_refusal(train: Train, open_page: Open) -> None:
    train("between")
    page = open_page("/runs/between", expect_failed_requests=True)

    def answer(route: Route) -> None:
        route.fulfill(status=502, content_type="text/html", body="<h1>Bad gateway</h1>")

    page.route("**/requests", answer)
    press(page, "census")
    expect(words(page, "census")).to_have_text("Not requested: the server answered 502.")
