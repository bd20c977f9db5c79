"""More than fifty names that would like to be more than text are text, on every page that shows names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page
from tests.browser.conftest import serving
from tests.browser.everything import NamedByOthers, add_hostile, open_all
from tests.browser.hostile_labels import ALIVE, LABELS

from leakline_server.texts import without_control

pytestmark = pytest.mark.long

Open = Callable[..., Page]
# What a page says, folded or not, without the numbers that its charts are drawn from.
SAID = """() => {
  const copy = document.querySelector("main").cloneNode(true);
  for (const each of copy.querySelectorAll("script, noscript")) each.remove();
  return copy.textContent;
}"""
ALL_OF_THEM = ("/runs/hostile", "/compare", "/alerts", "/settings")
LEAKS = (
    "/runs/hostile-leak",
    "/compare?before=hostile-leak&after=hostile",
    "/overlay?run=hostile-leak&run=hostile",
    "/incidents",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(Path(tmp_path_factory.mktemp("hostile"))) as (address, _):
        add_hostile(address)
        yield address


def said(page: Page) -> str:
    return without_blanks(page.evaluate(SAID))


def without_blanks(text: str) -> str:
    return "".join(text.split())


def kept(label: str) -> str:
    """What is stored of a name: without what turns the text around it."""
    return without_blanks(without_control(label))


def opened(open_page: Open, address: str, path: str) -> Page:
    """A page on which everything was drawn, and on which nothing has come to life."""
    page = open_page(path, address=address)
    open_all(page)
    assert page.evaluate(f"window.{ALIVE}") is None
    assert page.locator(f".{ALIVE}").count() == 0
    assert page.locator("main :is(iframe, img, script:not([type='application/json']))").count() == 0
    return page


def test_there_are_fifty(hostile: str) -> None:
    assert len(set(LABELS)) > 50


@pytest.mark.parametrize("path", ALL_OF_THEM)
def test_every_name_is_on_the_page_as_it_was_given(
    hostile: str, open_page: Open, path: str
) -> None:
    text = said(opened(open_page, hostile, path))
    wanted = [label for label in LABELS if path != "/alerts" or label.isprintable()]
    assert len(wanted) >= 50
    assert not [label for label in wanted if kept(label) not in text]


def test_every_run_is_in_the_list_by_its_name(hostile: str, open_page: Open) -> None:
    page = opened(open_page, hostile, "/")
    text = said(page)
    while page.locator(".pager a").count():
        page = opened(open_page, hostile, str(page.locator(".pager a").get_attribute("href")))
        text += said(page)
    assert not [label for label in LABELS if kept(label) not in text]


@pytest.mark.parametrize("path", LEAKS)
def test_a_leak_of_a_type_that_is_called_like_markup(
    hostile: str, open_page: Open, path: str
) -> None:
    text = said(opened(open_page, hostile, path))
    if "overlay" not in path:
        assert without_blanks(NamedByOthers.type_name) in text


@pytest.mark.parametrize("number", range(0, len(LABELS), 6))
def test_a_search_for_a_name_shows_it_as_it_was_typed(
    hostile: str, open_page: Open, number: int
) -> None:
    page = opened(open_page, hostile, "/")
    page.get_by_role("searchbox").fill(LABELS[number])
    page.get_by_role("searchbox").press("Enter")
    page.wait_for_load_state()
    assert page.evaluate(f"window.{ALIVE}") is None
    assert page.locator(f".{ALIVE}").count() == 0
    assert page.get_by_role("searchbox").input_value() == without_control(LABELS[number])
