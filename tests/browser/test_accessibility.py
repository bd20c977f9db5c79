"""Accessibility: axe-core finds no serious violation, and the pages work without scripts, mouse or a wide screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.everything import EMPTY, MISSING, PAGES, World
from tests.browser.patience import PATIENCE_MS, draw_everything, fits, open_all

Open = Callable[..., Page]
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
GRAVE = ("serious", "critical")
PHONE = {"width": 390, "height": 844}


def violations(page: Page) -> list[str]:
    """Return one line per violation. The script is injected, so the page's content security policy does not apply."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    assert found["testEngine"]["name"] == "axe-core" and found["passes"]
    return [
        f"{each['impact']} {each['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in GRAVE
        for node in each["nodes"]
    ]


@pytest.mark.long
def test_axe_detects_a_violation(world: World, open_page: Open) -> None:
    page = open_page("/settings", address=world.address)
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert [line for line in violations(page) if line.startswith("critical button-name")]


@pytest.mark.long
@pytest.mark.parametrize("name", [*PAGES, *EMPTY])
def test_pages_pass_axe_and_fit_a_phone(world: World, open_page: Open, name: str) -> None:
    if name == "live run":
        # The run would be silent by now.
        world.run_generation()
    page = open_page(
        world.path_of(name), address=world.address_of(name), expect_failed_requests=name in MISSING,
        color_scheme="dark", **PHONE,
    )  # fmt: skip
    draw_everything(page)
    assert fits(page, PHONE["width"])
    open_all(page)
    assert fits(page, PHONE["width"])
    page.evaluate("window.scrollTo(0, 0)")
    # All navigation links are visible without scrolling.
    expect(page.locator(".top nav a").last).to_be_in_viewport(ratio=1)
    assert violations(page) == []
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    open_all(page)
    assert violations(page) == []


@pytest.mark.long
def test_the_list_of_shortcuts_passes_axe(world: World, open_page: Open) -> None:
    page = open_page("/", address=world.address)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []


# All controls that must be reachable without a mouse.
CONTROLS = "main :is(a[href], button, input, select, textarea, summary, [tabindex='0'])"
# Of radio buttons only the chosen one is reachable; hidden and disabled controls are not, and plotly's are for the
# mouse.
REACHABLE = f"""() => [...document.querySelectorAll("{CONTROLS}")].filter((each) =>
    each.checkVisibility({{ visibilityProperty: true }}) && !each.disabled && !each.closest(".modebar")
    && each.type !== "hidden" && !(each.type === "radio" && !each.checked))"""
# State of the focused element: whether it has a focus ring, and where it is.
FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  return { ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1, name: at.outerHTML.slice(0, 120),
           place: window.reachable.indexOf(at), seen: box.bottom > 0 && box.top < innerHeight && at.checkVisibility(),
           top: at === document.body || at.matches(".skip") };
}"""
MAX_CONTROLS = 400
# The other pages have the same controls, or fewer.
WITH_CONTROLS = (
    "list", "live run", "comparison", "overlay", "choosing two", "incidents", "alerts", "settings", "patterns",
    "document", "no such run",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_CONTROLS)
def test_the_keyboard_reaches_every_control_and_shows_the_focus(
    world: World, open_page: Open, name: str
) -> None:
    page = open_page(
        PAGES[name], address=world.address, expect_failed_requests=name in MISSING, reduced_motion="reduce",
    )  # fmt: skip
    draw_everything(page)
    page.evaluate("window.scrollTo(0, 0)")
    page.evaluate(f"window.reachable = ({REACHABLE})()")
    wanted = set(range(page.evaluate("window.reachable.length")))
    assert wanted
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    reached, unseen = set(), []
    for _ in range(MAX_CONTROLS):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["top"]:
            break
        reached.add(focused["place"])
        if not (focused["ring"] and focused["seen"]):
            unseen.append(focused["name"])
    assert not unseen
    missed = [
        page.evaluate(f"window.reachable[{at}].outerHTML.slice(0, 120)")
        for at in sorted(wanted - reached)
    ]
    assert not missed


def test_the_skip_link_leads_past_the_bar(open_page: Open) -> None:
    page = open_page("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_the_pages_can_be_read_without_scripts(two_runs: None, open_page: Open) -> None:
    page = open_page("/runs/pair-leak?tab=phases", java_script_enabled=False)
    expect(page.locator("#verdict-sentence")).to_contain_text("evaluate_population")
    expect(page.locator("#phases table")).to_contain_text("train_population")
    page.locator("#trend summary").click()
    expect(page.locator("#trend details table")).to_contain_text("GiB")
    expect(page.get_by_role("button", name="Compare")).to_have_count(0)


def test_a_search_narrows_the_list(two_runs: None, open_page: Open) -> None:
    page = open_page("/")
    page.keyboard.press("/")
    page.keyboard.type("pair-fix")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="pair-fix")).to_be_visible()
    expect(page.get_by_role("link", name="pair-leak")).to_have_count(0)


def test_the_system_theme_is_followed(two_runs: None, open_page: Open) -> None:
    colours = {
        open_page("/", color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert len(colours) == 2


@pytest.mark.long
def test_the_keyboard_reaches_the_shortcuts_and_the_tabs(two_runs: None, open_page: Open) -> None:
    page = open_page("/runs/pair-leak")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    tabs = page.locator("#tabs nav a")
    titles = tabs.all_inner_texts()
    assert titles[0] == "Objects" and titles[-1] == "Run info"
    sections = {"Objects": "types", "Phases and time": "phases", "Run info": "environment"}
    for title, section in sections.items():
        tabs.get_by_text(title).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#tabs [aria-current]")).to_have_text(title)
        expect(page.locator(f"#{section}")).to_be_visible()
    page.go_back()
    expect(page.locator("#tabs [aria-current]")).to_have_text("Phases and time")
    expect(page.locator("#phases")).to_be_visible()
    expect(page.locator("#environment")).to_have_count(0)


@pytest.mark.long
def test_a_chart_can_be_saved_but_not_shared_elsewhere(
    two_runs: None, open_page: Open, tmp_path: Path
) -> None:
    page = open_page("/runs/pair-leak", accept_downloads=True)
    draw_everything(page)
    titles = page.locator(".modebar-btn").evaluate_all(
        "all => all.map((each) => each.ariaLabel || each.dataset.title || '')"
    )
    assert titles
    assert not re.search("share|cloud|plotly|studio", " ".join(titles), re.IGNORECASE)
    expect(page.locator(".modebar-btn--logo")).to_have_count(0)
    for name, kind in (("CSV", "csv"), ("PNG", "png")):
        with page.expect_download(timeout=PATIENCE_MS) as waiting:
            page.locator("[data-tools=trend]").get_by_text(name).click()
        assert waiting.value.suggested_filename == f"leakline-trend.{kind}"
        waiting.value.save_as(tmp_path / kind)
    assert (tmp_path / "csv").read_text().startswith("generation,")
    assert (tmp_path / "png").read_bytes().startswith(b"\x89PNG")
