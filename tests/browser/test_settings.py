"""Times are shown in the viewer's time zone and sizes in the viewer's units, on every page and in every chart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import LEAK, serving
from tests.browser.everything import PAGES, World
from tests.browser.patience import PATIENCE_MS, open_all, until
from tests.browser.test_accessibility import violations
from tests.browser.training import MadeTraining

Open = Callable[..., Page]
FAR = "Pacific/Auckland"
BINARY = re.compile(r"\d[\s\u00a0][KMGT]iB\b")
DECIMAL = re.compile(r"\d[\s\u00a0][kMGT]B\b")
# The unit of a chart's y axis.
AXIS = "document.getElementById('chart-trend').layout.yaxis.ticksuffix"


# Text of a page without charts, which are drawn when they come into view, and without text that users type.
SAID = """() => {
  const copy = document.querySelector("main").cloneNode(true);
  for (const each of copy.querySelectorAll("script, noscript, code, .chart, [data-choose]")) each.remove();
  return copy.textContent;
}"""


def words(page: Page) -> str:
    return str(page.evaluate(SAID))


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["list", "live run", "killed run", "comparison", "incidents", "alerts", "patterns"]
)
def test_every_time_is_in_the_viewers_time_zone(world: World, open_page: Open, name: str) -> None:
    page = open_page(PAGES[name], address=world.address, timezone_id=FAR, locale="en-GB")
    open_all(page)
    assert not re.search(r"\d\d:\d\d(:\d\d)? UTC", words(page))
    for time in page.locator("main time:not([data-show=ago])").all():
        at = datetime.fromisoformat(str(time.get_attribute("datetime"))).astimezone(ZoneInfo(FAR))
        assert f"{at:%H:%M}" in str(time.text_content())


def test_without_scripts_a_time_says_that_it_is_utc(two_runs: None, open_page: Open) -> None:
    page = open_page(f"/runs/{LEAK}", java_script_enabled=False)
    expect(page.locator("main time").first).to_contain_text("UTC")
    expect(page.locator("#units")).to_be_hidden()


def test_a_time_on_another_day_shows_the_date(open_page: Open) -> None:
    page = open_page("/patterns", timezone_id=FAR, locale="en-GB")
    expect(page.locator("#tables time")).to_contain_text("1 Feb 2026")


@pytest.mark.long
@pytest.mark.parametrize("path", ["/", "/runs/fixed", "/compare?before=live&after=fixed"])
def test_sizes_switch_to_decimal_and_back(world: World, open_page: Open, path: str) -> None:
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
def test_charts_and_live_updates_use_decimal_units_too(world: World, open_page: Open) -> None:
    page = open_page("/runs/live", address=world.address)
    open_all(page)
    page.locator("#chart-trend").scroll_into_view_if_needed()
    assert page.evaluate(AXIS) == " GiB"
    page.get_by_role("button", name="switch between binary and decimal").click()
    until(page, lambda: page.evaluate(AXIS) == " GB")
    progress = page.locator(".facts b").nth(1)
    said = progress.inner_text()
    world.run_generation()
    expect(progress).not_to_have_text(said, timeout=PATIENCE_MS)
    until(page, lambda: not BINARY.search(words(page)))
    page.reload()
    expect(page.locator("#units")).to_contain_text("GB")
    until(page, lambda: not BINARY.search(words(page)))


def test_names_with_units_are_not_converted(
    train: Callable[..., MadeTraining], open_page: Open
) -> None:
    train("at-most-2-GiB", 3, project="limit 2 GiB")
    page = open_page("/")
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="limit 2 GiB")).to_be_visible()


def test_units_and_theme_are_set_on_the_settings_page(open_page: Open) -> None:
    page = open_page("/settings", color_scheme="light")
    expect(page.get_by_role("radio", name="System")).to_be_checked()
    page.get_by_label("Decimal").check()
    expect(page.locator("#units")).to_contain_text("GB")
    page.get_by_role("radio", name="Dark").check()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("d")
    expect(page.get_by_role("radio", name="Light")).to_be_checked()
    page.get_by_role("radio", name="System").check()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") is None
    expect(page.get_by_role("radio", name="System")).to_be_checked()
    expect(page.get_by_label("Decimal")).to_be_checked()


# -- signing in, and making a token


PASSWORD = "correct horse battery"


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, LEAKLINE_LOGIN="1", LEAKLINE_ADMIN_PASSWORD=PASSWORD) as address:
        yield address


@pytest.mark.long
def test_a_person_signs_in_and_out(asking: str, open_page: Callable[..., Page]) -> None:
    page = open_page("/settings", address=asking, expect_failed_requests=True)
    assert page.url == f"{asking}/sign-in?next=/settings"
    secret = page.get_by_label("Password or token")
    expect(secret).to_be_focused()
    assert violations(page) == []
    secret.fill("a guess of somebody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("neither the password nor a token")
    secret.fill(PASSWORD)
    secret.press("Enter")
    expect(page).to_have_url(f"{asking}/settings")
    assert page.evaluate("document.cookie") == ""

    assert violations(page) == []
    page.get_by_label("Project", exact=True).fill("erl")
    page.get_by_role("button", name="Create token").click()
    token = page.get_by_label("Token", exact=True).inner_text()
    assert re.fullmatch(r"leakline_ingest_[\w-]{43}", token)
    page.goto(f"{asking}/settings")
    expect(page.locator("#tokens")).to_contain_text("adds to project erl")
    expect(page.locator("body")).not_to_contain_text(token)

    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{asking}/sign-in")
    page.goto(asking)
    expect(page).to_have_url(f"{asking}/sign-in?next=/")
