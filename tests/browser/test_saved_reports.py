"""Saved report files, opened without a server and network, and the button that copies a report as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import FIX, LEAK
from tests.browser.patience import (
    PATIENCE_MS,
    drag,
    draw_everything,
    fits,
    open_all,
    text_of,
    until,
)
from tests.browser.test_accessibility import violations

pytestmark = pytest.mark.long

Open = Callable[..., Page]
RUN = f"/runs/{LEAK}"
COMPARISON = f"/compare?before={LEAK}&after={FIX}"
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def save(two_runs: None, open_page: Open, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that saves the file from the menu of a page."""

    def saved(path: str) -> Path:
        page = open_page(path, accept_downloads=True)
        page.locator("#share").click()
        with page.expect_download(timeout=PATIENCE_MS) as waiting:
            page.get_by_role("link", name=re.compile("^HTML")).click()
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        return file

    return saved


@pytest.mark.parametrize("path", [RUN, COMPARISON])
def test_a_file_shows_its_charts_without_any_network(
    save: Callable[[str], Path], open_far_away: Callable[..., Page], path: str
) -> None:
    file = save(path)
    assert re.fullmatch(rf"leakline-[\w-]*{LEAK}[\w-]*\.html", file.name)
    page = open_far_away(file)
    assert draw_everything(page) >= 3
    expect(page.locator(".chart").first.locator(".trace").first).to_be_attached()
    expect(page.locator("h1, h2").first).to_be_visible()
    expect(page.locator("#made")).to_contain_text("by Leakline")
    expect(page.locator(".chip svg").first).to_be_visible()
    # The icons are drawn, not only referenced.
    assert page.locator(".chip svg use").first.evaluate("each => each.getBBox().width") > 0


def test_charts_of_a_file_can_be_zoomed_recoloured_and_saved(
    save: Callable[[str], Path], open_far_away: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_far_away(save(RUN), accept_downloads=True, color_scheme="light")
    draw_everything(page)
    paper = "document.getElementById('chart-trend').layout.paper_bgcolor"
    light = page.evaluate(paper)
    page.get_by_role("button", name="Switch between light and dark").click()
    page.locator("#chart-trend").scroll_into_view_if_needed()
    until(page, lambda: page.evaluate(paper) != light)
    background = page.evaluate("getComputedStyle(document.getElementById('trend')).backgroundColor")
    assert page.evaluate(paper) == background
    axis = "document.getElementById('chart-trend').layout.xaxis.range"
    whole = page.evaluate(axis)
    drag(page, "trend")
    until(page, lambda: page.evaluate(axis)[0] > whole[0])
    page.keyboard.press("r")
    until(page, lambda: page.evaluate(axis) == whole)
    for name, start in (("CSV", b"generation,"), ("PNG", b"\x89PNG")):
        with page.expect_download(timeout=PATIENCE_MS) as waiting:
            page.locator("[data-tools=trend]").get_by_text(name).click()
        waiting.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("path", [RUN, COMPARISON])
def test_a_file_passes_axe_and_fits_a_phone(
    save: Callable[[str], Path], open_far_away: Callable[..., Page], path: str
) -> None:
    page = open_far_away(save(path), viewport=PHONE)
    draw_everything(page)
    assert fits(page, PHONE["width"])
    page.set_viewport_size({"width": 1280, "height": 900})
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        open_all(page)
        assert violations(page) == []


def test_a_file_has_no_controls_that_need_a_server(
    save: Callable[[str], Path], open_far_away: Callable[..., Page]
) -> None:
    page = open_far_away(save(RUN))
    for words in ("Copy report", "Take a census", "Find holders", "Compare with"):
        expect(page.get_by_text(words)).to_have_count(0)
    expect(page.locator("#live")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def read_out(page: Page, words: str) -> None:
    expect(page.locator("[aria-live=polite]", has_text=words)).to_have_count(1)


@pytest.mark.parametrize("path", [RUN, COMPARISON])
def test_the_report_is_copied_with_the_keyboard(
    two_runs: None, open_page: Open, server: str, path: str
) -> None:
    page = open_page(path, permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy report")
    button.focus()
    page.keyboard.press("Enter")
    read_out(page, "Copied")
    expect(page.locator("#copy-report")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert f"Page: {server}{path}" in copied
    # Identical to the server's answer, which another test compares with an example.
    served = (
        path.replace("/compare?", "/compare/report.txt?") if "?" in path else f"{path}/report.txt"
    )
    assert copied.strip() == text_of(server + served).strip()
    assert "GiB" in copied and copied.startswith("**")
    expect(page.locator("#copy-report")).to_be_focused()


def test_without_a_clipboard_the_report_is_shown_in_a_dialog(
    two_runs: None, open_page: Open
) -> None:
    page = open_page(RUN)
    # As on plain HTTP, where the clipboard API is missing.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy report").click()
    box = page.get_by_role("dialog", name="Copy report")
    area = box.get_by_role("textbox")
    expect(area).to_be_focused()
    expect(area).to_have_value(re.compile("TradingEnvironment"))
    chosen = area.evaluate("each => each.value.slice(each.selectionStart, each.selectionEnd)")
    assert chosen == area.input_value()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)
    expect(page.locator("#copy-report")).to_be_focused()


def test_a_failed_copy_is_reported_at_the_button(two_runs: None, open_page: Open) -> None:
    page = open_page(RUN, expect_failed_requests=True)
    page.route("**/report.txt", lambda route: route.abort())
    page.get_by_role("button", name="Copy report").click()
    expect(page.locator("#copy-report")).to_have_text("Not copied: the server is not responding")


def test_the_share_menu_works_without_scripts_and_on_a_phone(
    two_runs: None, open_page: Open
) -> None:
    plain = open_page(RUN, java_script_enabled=False, **PHONE)
    expect(plain.get_by_role("button", name="Copy report")).to_have_count(0)
    plain.locator("#share").click()
    for words in ("HTML", "Markdown", "Text", "JSON"):
        expect(plain.locator("#share + .panel a", has_text=words).first).to_be_visible()
    box = plain.locator("#share + .panel").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    page = open_page(RUN)
    page.locator("#share").click()
    page.keyboard.press("Escape")
    expect(page.locator("#share-html")).to_be_hidden()
    expect(page.locator("#share")).to_be_focused()
    page.locator("#share").click()
    page.locator("#verdict-sentence").click()
    expect(page.locator("#share-html")).to_be_hidden()
