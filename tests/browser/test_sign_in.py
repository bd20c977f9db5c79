"""A person signs in on a server that asks, makes a token, and signs out; without scripts doing any of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import serving
from tests.browser.test_accessibility import violations

PASSWORD = "correct horse battery"


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, LEAKLINE_LOGIN="1", LEAKLINE_ADMIN_PASSWORD=PASSWORD) as (address, _):
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
    page.get_by_role("button", name="Make a token").click()
    token = page.get_by_label("Token", exact=True).inner_text()
    assert re.fullmatch(r"leakline_ingest_[\w-]{43}", token)
    page.goto(f"{asking}/settings")
    expect(page.locator("#tokens")).to_contain_text("adds to project erl")
    expect(page.locator("body")).not_to_contain_text(token)

    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{asking}/sign-in")
    page.goto(asking)
    expect(page).to_have_url(f"{asking}/sign-in?next=/")
