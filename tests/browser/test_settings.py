"""Times are those of the viewer's zone, and sizes in the viewer's units, on every page and in every chart."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import OwnServer
from tests.browser.everything import MISSING, PAGES, World, open_all
from tests.browser.patience import until
from tests.browser.training import MadeTraining

Open = Callable[..., Page]
PATIENCE_MS = 30_000
FAR = "Pacific/Auckland"
BINARY = re.compile(r"\d[\s\u00a0][KMGT]iB\b")
DECIMAL = re.compile(r"\d[\s\u00a0][kMGT]B\b")
# An axis in the units in force.
AXIS = "document.getElementById('chart-trend').layout.yaxis.ticksuffix"


# What a page says besides its charts, which are drawn when they come into view, and what is to be typed.
SAID = """() => {
  const copy = document.querySelector("main").cloneNode(true);
  for (const each of copy.querySelectorAll("script, noscript, code, .chart, [data-choose]")) each.remove();
  return copy.textContent;
}"""


def words(page: Page) -> str:
    return str(page.evaluate(SAID))


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_every_time_is_one_of_the_viewers_zone(world: World, open_page: Open, name: str) -> None:
    page = open_page(
        PAGES[name], address=world.address, expect_failed_requests=name in MISSING,
        timezone_id=FAR, locale="en-GB",
    )  # fmt: skip
    open_all(page)
    assert not re.search(r"\d\d:\d\d(:\d\d)? UTC", words(page))
    for time in page.locator("main time:not([data-show=ago])").all():
        at = datetime.fromisoformat(str(time.get_attribute("datetime"))).astimezone(ZoneInfo(FAR))
        assert f"{at:%H:%M}" in str(time.text_content())


def test_without_scripts_a_time_says_that_it_is_utc(world: World, open_page: Open) -> None:
    page = open_page("/incidents", address=world.address, java_script_enabled=False)
    expect(page.locator("main time").first).to_contain_text("UTC")
    expect(page.locator("#units")).to_be_hidden()


def test_a_time_of_another_day_says_the_day(world: World, open_page: Open) -> None:
    page = open_page("/patterns", address=world.address, timezone_id=FAR, locale="en-GB")
    expect(page.locator("#tables time")).to_contain_text("1 Feb 2026")


@pytest.mark.long
@pytest.mark.parametrize("path", ["/", "/runs/fixed", "/compare?before=live&after=fixed", "/settings"])  # fmt: skip
def test_sizes_become_decimal_and_binary_again(world: World, open_page: Open, path: str) -> None:
    page = open_page(path, address=world.address)
    open_all(page)
    before = words(page)
    assert BINARY.search(before)
    page.keyboard.press("u")
    after = words(page)
    assert DECIMAL.search(after) and not BINARY.search(after)
    page.keyboard.press("u")
    assert BINARY.findall(words(page)) == BINARY.findall(before)


@pytest.mark.long
def test_charts_and_what_comes_later_are_decimal_too(world: World, open_page: Open) -> None:
    page = open_page("/runs/live", address=world.address)
    open_all(page)
    page.locator("#chart-trend").scroll_into_view_if_needed()
    assert page.evaluate(AXIS) == " GiB"
    page.get_by_role("button", name="switch between binary and decimal").click()
    until(page, lambda: page.evaluate(AXIS) == " GB")
    progress = page.locator(".facts b").nth(1)
    said = progress.inner_text()
    world.live.run_generation()
    expect(progress).not_to_have_text(said, timeout=PATIENCE_MS)
    until(page, lambda: not BINARY.search(words(page)))
    page.reload()
    expect(page.locator("#units")).to_contain_text("GB")
    until(page, lambda: not BINARY.search(words(page)))


def test_names_stay_as_people_wrote_them(own_server: OwnServer, open_page: Open) -> None:
    training = MadeTraining(own_server.address, "at-most-2-GiB", project="limit 2 GiB")
    training.start()
    training.run_generations(3)
    page = open_page("/", address=own_server.address)
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="limit 2 GiB")).to_be_visible()


def test_the_settings_choose_the_same(world: World, open_page: Open) -> None:
    page = open_page("/settings", address=world.address, color_scheme="light")
    expect(page.get_by_label("As the system")).to_be_checked()
    page.get_by_label("Decimal").check()
    expect(page.locator("#units")).to_contain_text("GB")
    page.get_by_role("radio", name="Dark").check()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("d")
    expect(page.get_by_role("radio", name="Light")).to_be_checked()
    page.get_by_label("As the system").check()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") is None
    expect(page.get_by_label("As the system")).to_be_checked()
    expect(page.get_by_label("Decimal")).to_be_checked()
