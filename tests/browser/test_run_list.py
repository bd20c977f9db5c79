"""The list of runs: searching, sorting, picking by mouse or keyboard, overlays, deleting and restoring."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.patience import PATIENCE_MS, draw_everything, fits, text_of, until
from tests.browser.training import MadeTraining

Open = Callable[..., Page]
PROJECT = "many tries"
LIST = "/?q=" + quote(f'project:"{PROJECT}"')
REFRESH_MS = 4_000
NAMES = ("try-one", "try-two", "try-three", "try-four")


@pytest.fixture(scope="module")
def tries(server: str) -> str:
    for number, name in enumerate(NAMES):
        training = MadeTraining(
            server, name, leaking=number % 2 == 0, project=PROJECT, tags=("long run",)
        )
        training.start()
        training.run_generations(6 + number)
        training.finish()
    return server


def check(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_label(f"Pick {name}", exact=True).check()


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def names(page: Page) -> list[str]:
    return page.locator(".runs .name").all_text_contents()


def in_api(server: str) -> list[str]:
    with urllib.request.urlopen(f"{server}/api/v1/runs?project={quote(PROJECT)}") as answer:
        return sorted(item["name"] for item in json.load(answer)["items"])


def test_buttons_depend_on_the_number_of_picked_runs(tries: str, open_page: Open) -> None:
    page = open_page(LIST)
    for name in ("Compare", "Overlay", "Delete"):
        expect(button(page, name)).to_be_disabled()
    check(page, "try-one")
    expect(button(page, "Overlay")).to_be_disabled()
    expect(button(page, "Delete")).to_be_enabled()
    check(page, "try-two")
    expect(button(page, "Compare")).to_be_enabled()
    expect(button(page, "Overlay")).to_be_enabled()
    check(page, "try-three")
    expect(button(page, "Compare")).to_be_disabled()
    expect(button(page, "Overlay")).to_be_enabled()
    button(page, "Clear").click()
    expect(button(page, "Overlay")).to_be_disabled()


@pytest.mark.long
def test_three_runs_are_overlaid_and_the_link_shows_the_same(tries: str, open_page: Open) -> None:
    page = open_page(LIST)
    check(page, "try-one", "try-two", "try-three")
    button(page, "Overlay").click()
    expect(page).to_have_url(re.compile(r"/overlay\?run=try-one&run=try-two&run=try-three"))
    expect(page.get_by_role("heading", name="Overlay of 3 runs")).to_be_visible()
    draw_everything(page)
    lines = "document.getElementById('chart-overlay').data.map((each) => each.name)"
    assert set(page.evaluate(lines)) >= {"try-one", "try-two", "try-three"}
    axis = "document.getElementById('chart-overlay').layout.xaxis.range"
    page.evaluate("Plotly.relayout('chart-overlay', {'xaxis.range': [1.5, 4.5]})")
    expect(page).to_have_url(re.compile(r"x=1\.5\.\.4\.5"))
    # The other series keeps the range, also for others who open the link.
    page.get_by_role("link", name="RSS").click()
    expect(page).to_have_url(re.compile(r"series=rss.*x=1\.5\.\.4\.5"))
    again = open_page(page.url.removeprefix(tries))
    draw_everything(again)
    until(again, lambda: again.evaluate(axis) == [1.5, 4.5])
    until(again, lambda: again.locator("#chart-overlay").get_attribute("data-of") == "stretch")
    expect(again.get_by_role("link", name="RSS")).to_have_attribute("aria-current", "true")
    again.keyboard.press("r")
    until(again, lambda: again.evaluate(axis)[0] < 0)
    assert "x=" not in again.url


@pytest.mark.long
def test_picked_runs_and_focus_survive_a_live_refresh(
    tries: str, open_page: Open, server: str
) -> None:
    page = open_page(LIST)
    picked = page.get_by_label("Pick try-two", exact=True)
    picked.focus()
    page.keyboard.press("Space")
    page.evaluate("document.querySelector('.runs').dataset.old = 'true'")
    training = MadeTraining(server, "try-late", project=PROJECT)
    training.start()
    training.run_generations(2)
    training.finish()
    # The focused row stays until the user asks for the new list.
    expect(page.locator("#updates")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".runs[data-old]")).to_have_count(1)
    page.locator("#updates").focus()
    page.keyboard.press("Enter")
    # All rows are redrawn.
    expect(page.locator(".runs[data-old]")).to_have_count(0, timeout=PATIENCE_MS)
    expect(page.get_by_label("Pick try-late", exact=True)).to_be_visible()
    expect(picked).to_be_checked()
    expect(picked).to_be_focused()
    expect(button(page, "Delete")).to_be_enabled()
    page.get_by_label("Pick try-one", exact=True).focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Compare", exact=True).focus()
    page.keyboard.press("Enter")
    # In the order in which they were picked.
    expect(page).to_have_url(re.compile("before=try-two&after=try-one"))


def test_runs_are_sorted_by_column_and_grouped_by_choice(tries: str, open_page: Open) -> None:
    page = open_page(f"{LIST}&group=none")
    page.get_by_role("link", name="Run", exact=True).click()
    head = page.get_by_role("columnheader", name="Run", exact=True)
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert names(page) == sorted(names(page))
    page.get_by_role("link", name="Run", exact=True).click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert names(page) == sorted(names(page), reverse=True)
    # Wait for the script that submits a choice.
    page.wait_for_load_state()
    page.get_by_label("Group runs").select_option("tag")
    expect(page).to_have_url(re.compile("group=tag&sort=-name"))
    page.get_by_role("link", name="long run").first.click()
    expect(page.get_by_label("Search runs")).to_have_value('tag:"long run"')
    assert set(NAMES) <= set(names(page))


@pytest.mark.long
def test_two_runs_are_deleted_and_restored_on_a_phone(
    tries: str, open_page: Open, server: str
) -> None:
    page = open_page(LIST, width=390, height=844)
    check(page, "try-three", "try-four")
    button(page, "Delete").click()
    expect(page.get_by_text("Deleted 2 runs.")).to_be_visible()
    assert fits(page, 390)
    expect(page.get_by_role("link", name="try-three")).to_have_count(0)
    assert "try-three" not in in_api(server) and "try-one" in in_api(server)
    gone = open_page("/runs/try-four", width=390, height=844)
    expect(gone.get_by_role("heading", name="try-four was deleted")).to_be_visible()
    assert fits(gone, 390)
    gone.get_by_role("button", name="Undo").click()
    expect(gone.locator("#verdict-sentence")).to_be_visible()
    button(page, "Undo").click()
    expect(page.get_by_role("link", name="try-three").first).to_be_visible()
    expect(page.get_by_text("Deleted 2 runs.")).to_have_count(0)
    assert set(NAMES) <= set(in_api(server))


@pytest.mark.long
def test_deleted_runs_are_found_and_restored(tries: str, open_page: Open, server: str) -> None:
    page = open_page(LIST)
    check(page, "try-one", "try-two", "try-three")
    button(page, "Delete").click()
    page.get_by_role("link", name="can still be restored").click()
    for name in ("Compare", "Overlay", "Delete"):
        expect(button(page, name)).to_have_count(0)
    expect(button(page, "Bring back")).to_be_disabled()
    check(page, "try-one", "try-three")
    button(page, "Bring back").click()
    expect(page.get_by_label("Pick try-two", exact=True)).to_be_visible()
    expect(page.get_by_label("Pick try-one", exact=True)).to_have_count(0)
    assert "try-one" in in_api(server) and "try-two" not in in_api(server)
    check(page, "try-two")
    button(page, "Bring back").click()
    expect(page.get_by_text("No run matches this search.")).to_be_visible()
    assert set(NAMES) <= set(in_api(server))


def test_a_run_is_deleted_from_its_page(tries: str, open_page: Open, server: str) -> None:
    page = open_page("/runs/try-one")
    delete = page.get_by_role("button", name="Delete this run")
    expect(delete).to_be_hidden()
    page.get_by_text("Delete…").click()
    delete.click()
    expect(page.get_by_text("Deleted try-one.")).to_be_visible()
    assert "try-one" not in in_api(server)
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.get_by_text("Deleted try-one.")).to_have_count(0)
    assert "try-one" in in_api(server)


def test_the_run_list_works_without_scripts(tries: str, open_page: Open, server: str) -> None:
    page = open_page(LIST, java_script_enabled=False)
    check(page, "try-one", "try-two")
    button(page, "Overlay").click()
    expect(page.get_by_role("heading", name="Overlay of 2 runs")).to_be_visible()
    expect(page.locator("#runs table")).to_contain_text("try-two")
    page.goto(f"{server}{LIST}&sort=name")
    check(page, "try-one", "try-two")
    button(page, "Compare").click()
    expect(page.locator("#outcome-sentence")).to_be_visible()
    page.goto(f"{server}{LIST}&sort=name")
    check(page, "try-two")
    button(page, "Delete").click()
    expect(page.get_by_text("Deleted try-two.")).to_be_visible()
    expect(page.get_by_label("Sort runs")).to_have_value("name")
    button(page, "Undo").click()
    assert "try-two" in in_api(server)


def test_too_many_runs_are_refused_in_a_line(tries: str, open_page: Open) -> None:
    many = "&".join(f"run=x{number}" for number in range(11))
    page = open_page(f"/overlay?{many}", expect_failed_requests=True)
    expect(page.get_by_text("an overlay shows at most 10 runs")).to_be_visible()


@pytest.mark.long
def test_updates_do_not_move_a_hovered_row(
    train: Callable[..., MadeTraining], open_page: Open, server: str
) -> None:
    for name in ("first", "second"):
        train(name, project="hovered").finish()
    page = open_page("/?q=project:hovered&sort=seen")
    expect(page.locator(".runs .name")).to_have_text(["second", "first"])
    updates = page.locator("#updates")
    page.locator(".runs .name").first.hover()
    train("third", project="hovered")
    expect(updates).to_have_text(re.compile(r"^Show \d+ updates?$"), timeout=PATIENCE_MS)
    assert names(page) == ["second", "first"]
    updates.click()
    expect(page.locator(".runs .name")).to_have_text(["third", "second", "first"])
    expect(updates).to_be_hidden()
    # The list is updated when the pointer leaves it.
    page.locator(".runs .name").last.hover()
    train("fourth", project="hovered")
    expect(updates).to_be_visible(timeout=PATIENCE_MS)
    page.locator("h1").hover()
    expect(page.locator(".runs .name").first).to_have_text("fourth")


@pytest.mark.long
def test_updates_do_not_move_a_focused_row(
    train: Callable[..., MadeTraining], open_page: Open
) -> None:
    for name in ("one", "two"):
        train(name, project="focused", tags=("same",)).finish()
    page = open_page("/?q=project:focused&sort=seen")
    page.get_by_label("Pick one", exact=True).focus()
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="one", exact=True)
    expect(link).to_be_focused()
    train("three", project="focused", tags=("same",))
    expect(page.locator("#updates")).to_be_visible(timeout=PATIENCE_MS)
    assert names(page) == ["two", "one"]
    # Each row has a link with the same address.
    page.keyboard.press("Tab")
    tag = page.locator("[data-run=one] .tag")
    expect(tag).to_be_focused()
    page.locator("#updates").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".runs .name")).to_have_text(["three", "two", "one"])
    expect(tag).to_be_focused()
    train("four", project="focused")
    expect(page.locator("#updates")).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_label("Search runs").focus()
    expect(page.locator(".runs .name").first).to_have_text("four")


@pytest.mark.long
def test_the_updates_button_is_not_shown_under_the_pointer(
    train: Callable[..., MadeTraining], open_page: Open
) -> None:
    for number in range(14):
        train(f"row-{number}", project="pointed").finish()
    page = open_page("/?q=project:pointed&sort=seen", height=500)
    updates, middle = page.locator("#updates"), page.evaluate("innerWidth / 2")
    for number, y in enumerate((14, 470)):
        page.evaluate(
            "scrollBy({top: document.getElementById('list').getBoundingClientRect().top, behavior: 'instant'})"
        )
        page.mouse.move(middle, y)
        page.mouse.move(middle + 1, y)
        train(f"new-{number}", project="pointed")
        expect(updates).to_be_visible(timeout=PATIENCE_MS)
        below = f"document.elementFromPoint({middle}, {y}).closest('#updates')"
        assert page.evaluate(below) is None
        page.locator("h1").hover()
        expect(updates).to_be_hidden()


def test_open_details_and_focus_are_restored_by_name(tries: str, open_page: Open) -> None:
    """Names are used because positions may change when a part is replaced."""
    page = open_page(LIST)
    found = page.evaluate("""async () => {
        const { takeParts } = await import("/static/js/page_fragments.js");
        const item = (name, text) =>
            `<li id="${name}"><details><summary>Evidence</summary>${text}</details><a href="/${name}">x</a></li>`;
        const part = (...items) => `<ul data-part="test">${items.join("")}</ul>`;
        document.querySelector("main").insertAdjacentHTML("beforeend", part(item("a", "1"), item("b", "1")));
        document.querySelector("#b details").open = true;
        document.querySelector("#b a").focus();
        const opened = () => ["new", "a", "b"].filter((id) => document.querySelector(`#${id} details`)?.open);
        takeParts(part(item("new", "2"), item("a", "2"), item("b", "2")));
        const moved = [opened(), document.activeElement.getAttribute("href")];
        takeParts(part(item("new", "3"), item("a", "3")));
        return [...moved, opened(), document.activeElement.tagName];
    }""")
    assert found == [["b"], "/b", [], "BODY"]


def test_each_run_has_one_readable_row(tries: str, open_page: Open) -> None:
    page = open_page(LIST)
    heights = "[...document.querySelectorAll('.runs tbody tr')].map((row) => row.getBoundingClientRect().height)"
    assert max(page.evaluate(heights)) <= 44
    assert fits(page, 1280)
    with urllib.request.urlopen(f"{tries}/api/v1/runs?project={quote(PROJECT)}") as answer:
        summaries = {item["summary"] for item in json.load(answer)["items"]}
    sentences = page.locator(".runs .sentence")
    assert {each.get_attribute("title") for each in sentences.all()} == summaries


@pytest.mark.long
def test_a_refresh_without_changes_leaves_the_list_unchanged(
    train: Callable[..., MadeTraining], open_page: Open, server: str
) -> None:
    for number in range(30):
        train(f"run-{number}", project="quiet").finish()
    address = f"{server}/?q=project:quiet"
    page = open_page("/docs")
    # The list also changes while a run is being examined.
    same = text_of(address)
    page.route(
        lambda url: url == address,
        lambda route: route.fulfill(body=same, content_type="text/html"),
    )
    page.clock.install()
    page.goto(address)
    link = page.get_by_role("link", name="run-3", exact=True)
    link.focus()
    link.evaluate("element => { element.isTheSame = true; }")
    page.evaluate("scrollTo(0, 0)")
    for _ in range(2):
        with page.expect_response(address):
            page.clock.fast_forward(REFRESH_MS)
    assert link.evaluate("element => element.isTheSame && element === document.activeElement")
    # With changes the list is redrawn on request; the focus and the scroll position stay.
    page.unroute_all()
    train("newest", project="quiet")
    page.clock.fast_forward(REFRESH_MS)
    expect(page.locator("#updates")).to_be_visible()
    page.locator("#updates").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="newest", exact=True)).to_be_visible()
    expect(link).to_be_focused()
    assert page.evaluate("scrollY === 0")
