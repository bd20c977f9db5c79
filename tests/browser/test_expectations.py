"""Expectations on the run page: stable counts are expected and removed with one click, with and without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.patience import fits, until
from tests.browser.training import MadeTraining

Open = Callable[..., Page]
Train = Callable[..., MadeTraining]
ARRAYS = "numpy.ndarray"
# The count in a simulated training without a leak.
COUNT = 418


def row_of(page: Page) -> Locator:
    return page.locator("#expectations tbody tr", has_text=ARRAYS)


@pytest.mark.long
@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_one_click_expects_a_count_in_later_runs_too(
    open_page: Open, train: Train, scripts: bool
) -> None:
    project = f"counts {scripts}"
    train(f"keeps-{scripts}", 10, leaking=False, project=project)
    page = open_page(f"/runs/keeps-{scripts}", java_script_enabled=scripts)
    section = page.locator("#expectations")
    expect(section).to_contain_text(f"was {COUNT} at every reading of the last 8 generations")
    expect(row_of(page)).to_have_count(0)
    section.get_by_role("button", name=f"Expect {COUNT} {ARRAYS}").click()

    expect(page).to_have_url(re.compile(f"/runs/keeps-{scripts}#expectations$"))
    expect(row_of(page)).to_contain_text("holds")
    expect(row_of(page)).to_contain_text("a person")
    expect(section).to_contain_text(f"is accepted as {COUNT} in project {project}")
    expect(section.get_by_role("button", name=f"Expect {COUNT}")).to_have_count(0)

    train(f"leaks-{scripts}", 5, project=project)
    later = open_page(f"/runs/leaks-{scripts}", java_script_enabled=scripts)
    expect(row_of(later)).to_contain_text("broken")

    section.get_by_role("button", name=f"Stop expecting {COUNT} {ARRAYS}").click()
    expect(row_of(page)).to_have_count(0)
    expect(section.get_by_role("button", name=f"Expect {COUNT} {ARRAYS}")).to_be_visible()


@pytest.mark.long
def test_the_expect_button_stays_usable_during_live_updates(open_page: Open, train: Train) -> None:
    training = train("goes-on", 10, leaking=False, project="going on")
    page = open_page("/runs/goes-on", width=375, height=800)
    button = page.locator("#expectations").get_by_role("button", name=f"Expect {COUNT} {ARRAYS}")
    button.focus()
    training.run_generations(2)
    expect(page.locator(".facts").first).to_contain_text("12 of 25 generations")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(row_of(page)).to_contain_text("holds")
    # A redrawn chart has its width a moment later.
    until(page, lambda: fits(page, 375))
    box = page.get_by_role("button", name=f"Stop expecting {COUNT} {ARRAYS}").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 375 and box["height"] >= 30  # fmt: skip


# -- custom rules


def test_a_rule_is_set_without_scripts(open_page: Open) -> None:
    page = open_page("/alerts", java_script_enabled=False)
    name = "Long queue"

    def submit(button: Locator) -> None:
        # Loading ends with a scroll to the rule, which would move the next button away from the pointer.
        with page.expect_navigation():
            button.click()

    page.get_by_text("Add your own rule").click()
    form = page.locator("form.fields[action='/alerts/rules']")
    form.get_by_label("Series").fill("gauge.queue")
    form.get_by_label("Measure").select_option("change per generation")
    form.get_by_label("Above").fill("500 MiB")
    form.get_by_label("Name").fill(name)
    submit(form.get_by_role("button", name="Add rule"))

    rule = page.locator("#rules li", has_text=name)
    expect(rule).to_contain_text("change of gauge.queue per generation above 524,288,000")
    expect(rule).to_contain_text("quiet")
    rule.get_by_text("Change…").click()
    rule.get_by_label("Above").fill("7")
    submit(rule.get_by_role("button", name="Save this rule"))
    expect(rule).to_contain_text("per generation above 7")
    submit(rule.get_by_role("button", name="Pause"))
    expect(rule).to_contain_text("paused")
    rule.get_by_text("Delete…").click()
    rule.get_by_role("button", name="Delete this rule").click()
    expect(rule).to_have_count(0)


def test_a_predefined_rule_is_added_with_one_click(open_page: Open) -> None:
    page = open_page("/alerts")
    page.get_by_text("Add a predefined rule").click()
    page.get_by_label("Project for Tensor count bands").fill("erl")
    page.get_by_role("button", name="Add Tensor count bands").click()
    for band in ("elevated", "high", "critical"):
        expect(page.locator("#rules li", has_text=f"Tensors {band}")).to_contain_text("erl")
