"""A rule is set, refused, changed, paused and deleted on the page, with and without scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

Open = Callable[..., Page]


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_a_person_sets_a_rule(open_page: Open, scripts: bool) -> None:
    page = open_page("/alerts", java_script_enabled=scripts)
    name = f"Queue {scripts}"
    page.get_by_text("Add a rule of your own").click()
    form = page.locator("form.fields[action='/alerts/rules']")
    form.get_by_label("Series").fill("gauge.queue")
    form.get_by_label("What of it").select_option("change per generation")
    form.get_by_label("Above").fill("500 MiB")
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Add rule").click()

    rule = page.locator("#rules li", has_text=name)
    expect(rule).to_contain_text("change of gauge.queue per generation above 524,288,000")
    expect(rule).to_contain_text("quiet")
    rule.get_by_text("Change…").click()
    rule.get_by_label("Above").fill("7")
    rule.get_by_role("button", name="Save this rule").click()
    expect(rule).to_contain_text("per generation above 7")
    rule.get_by_role("button", name="Pause").click()
    expect(rule).to_contain_text("paused")
    rule.get_by_text("Delete…").click()
    rule.get_by_role("button", name="Delete this rule").click()
    expect(rule).to_have_count(0)


def test_a_ready_made_rule_is_one_click(open_page: Open) -> None:
    page = open_page("/alerts")
    page.get_by_text("Add a ready-made one").click()
    page.get_by_label("Project for Bands of tensors").fill("erl")
    page.get_by_role("button", name="Add Bands of tensors").click()
    for band in ("elevated", "high", "critical"):
        expect(page.locator("#rules li", has_text=f"Tensors {band}")).to_contain_text("erl")
