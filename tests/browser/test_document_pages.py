"""The documents in a real browser: navigation, search, pictures in the colour scheme, and no foreign requests."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect
from tests.browser.patience import fits

Open = Callable[..., Page]


def test_a_document_is_two_clicks_from_any_page(server: str, open_page: Open) -> None:
    page = open_page("/incidents")
    page.get_by_role("link", name="Docs", exact=True).click()
    page.locator(".document").get_by_role("link", name="Operate a server").click()
    expect(page).to_have_url(f"{server}/docs/operating")
    expect(page.get_by_role("heading", level=1)).to_have_text("Operate a server")
    alongside = page.get_by_role("navigation", name="All documents")
    expect(alongside.locator("[aria-current=page]")).to_have_text("Operate a server")


def test_documents_link_to_the_next_one(open_page: Open) -> None:
    page = open_page("/docs")
    titles = []
    for _ in range(2):
        page.locator("a[rel=next]").click()
        page.wait_for_load_state()
        titles.append(page.locator("h1").inner_text())
    assert titles[0] != titles[1]
    page.locator("a[rel=prev]").click()
    expect(page.locator("h1")).to_have_text(titles[0])


def test_a_link_to_a_heading_scrolls_to_it(open_page: Open) -> None:
    page = open_page("/docs/concepts")
    page.locator(".document").get_by_role("link", name="leakline estimate").click()
    expect(page.locator("#check-an-estimate")).to_be_in_viewport()


def test_pictures_match_the_colour_scheme(open_page: Open) -> None:
    page = open_page("/docs/run-page", color_scheme="light")
    light, dark = (page.locator(f".document img.only-{each}").first for each in ("light", "dark"))
    light.scroll_into_view_if_needed()
    expect(light).to_be_visible()
    assert light.evaluate("(each) => each.decode().then(() => each.naturalWidth)") > 600
    expect(dark).to_be_hidden()
    page.keyboard.press("d")
    expect(dark).to_be_visible()
    expect(light).to_be_hidden()


def test_sizes_in_documents_are_not_converted(open_page: Open) -> None:
    page = open_page("/docs/memory")
    before = page.locator(".document").inner_text()
    assert "128 KiB" in before
    page.keyboard.press("u")
    expect(page.locator("[data-units]")).to_have_text("GB")
    assert page.locator(".document").inner_text() == before


def test_a_wide_table_scrolls_on_a_phone_and_the_page_does_not(open_page: Open) -> None:
    page = open_page("/docs/compared", width=390, height=844)
    assert fits(page, 390)
    table = page.locator(".document .scroll").nth(1)
    expect(table).to_contain_text("Resident memory of the process over time")
    expect(table.locator("td:nth-child(2)").first).to_have_css("white-space", "normal")
    assert table.evaluate("(each) => each.scrollWidth - each.clientWidth") > 300
    assert table.evaluate("(each) => { each.scrollLeft = 300; return each.scrollLeft; }") == 300
    # The column is wide enough for a few words per line.
    assert table.locator("td:nth-child(2)").first.bounding_box()["width"] > 120  # type: ignore[index]


def test_a_search_without_scripts_leads_to_the_heading(server: str, open_page: Open) -> None:
    page = open_page("/docs/compared", java_script_enabled=False)
    field = page.get_by_role("searchbox", name="Search the documents")
    field.fill("leaking programs twins")
    field.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("leaking programs twins")
    page.locator(".hits").get_by_role("link", name="Leaking programs").click()
    expect(page).to_have_url(f"{server}/docs/detection#leaking-programs")
    expect(page.locator("#leaking-programs")).to_be_in_viewport()


def test_the_slash_key_focuses_the_search(open_page: Open) -> None:
    page = open_page("/docs/detection")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search the documents")).to_be_focused()


def test_the_table_of_contents_leads_to_its_headings(open_page: Open) -> None:
    page = open_page("/docs/detection")
    contents = page.get_by_role("navigation", name="On this page")
    contents.get_by_role("link", name="Leaking programs").click()
    expect(page.locator("#leaking-programs")).to_be_in_viewport()


def test_on_a_phone_search_and_contents_are_above_the_document(open_page: Open) -> None:
    page = open_page("/docs/detection", width=390, height=844)
    assert fits(page, 390)
    places = [
        page.locator(each).bounding_box()
        for each in (".document-search", ".on-page", ".document", ".others")
    ]
    tops = [place["y"] for place in places if place]
    assert len(tops) == 4 and tops == sorted(tops)
