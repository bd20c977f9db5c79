"""axe-core looks at every page, in light and dark and on a phone: nothing that keeps people out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.everything import EMPTY, MISSING, PAGES, World, open_all

pytestmark = pytest.mark.long

Open = Callable[..., Page]
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
GRAVE = ("serious", "critical")
VIEWS = {
    "light": ({"width": 1280, "height": 900}, "light"),
    "dark": ({"width": 1280, "height": 900}, "dark"),
    "phone": ({"width": 390, "height": 844}, "light"),
}


def violations(page: Page) -> list[str]:
    """What is wrong and where, one line each. The script is ours, so the page's policy has no say in it."""
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


def test_axe_is_the_one_that_was_released() -> None:
    named = (AXE.parent / "README.txt").read_text().split("sha256: ")[1].strip()
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == named


def test_axe_would_find_something(world: World, open_page: Open) -> None:
    page = open_page("/settings", address=world.address)
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert [line for line in violations(page) if line.startswith("critical button-name")]


@pytest.mark.parametrize("name", [*PAGES, *EMPTY])
def test_axe_finds_nothing_grave(world: World, open_page: Open, name: str) -> None:
    if name == "live run":
        # It would be silent by now.
        world.live.run_generation()
    page = open_page(
        world.path_of(name), address=world.address_of(name), expect_failed_requests=name in MISSING
    )
    wrong = []
    for view, (size, scheme) in VIEWS.items():
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        open_all(page)
        wrong += [f"{view}: {line}" for line in violations(page)]
    assert not wrong, "\n".join(wrong)


def test_axe_finds_nothing_grave_in_the_list_of_keys(world: World, open_page: Open) -> None:
    page = open_page("/", address=world.address)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []
