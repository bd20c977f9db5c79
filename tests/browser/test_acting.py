"""Actions on the page of a run: mute, notify, compare and share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.conftest import serving
from tests.browser.patience import PATIENCE_MS, fits, until
from tests.browser.test_accessibility import violations
from tests.browser.training import MadeTraining

from leakline_server.security.token_issuing import Wish, issue
from leakline_server.store.engine import open_engine

Train = Callable[..., MadeTraining]
Open = Callable[..., Page]


@pytest.mark.parametrize("scripts", [True, False])
def test_a_leak_is_muted_and_unmuted_on_the_run_page(
    train: Train, open_page: Open, scripts: bool
) -> None:
    run = f"muted-{scripts}"
    train(run, 8, project=f"mutes-{scripts}").finish()
    page = open_page(f"/runs/{run}", java_script_enabled=scripts, width=390, height=844)
    leak = page.locator("article.finding").first
    until(page, lambda: leak.is_visible() or (page.reload() is None and leak.is_visible()))
    leak.get_by_text("Mute…").click()
    leak.get_by_label("For").select_option("1 week")
    assert fits(page, 390)
    assert not scripts or violations(page) == []
    leak.get_by_role("button", name="Mute", exact=True).click()
    page.wait_for_url(f"**/runs/{run}#findings")
    expect(leak.locator(".said")).to_contain_text("Muted")
    leak.get_by_role("link", name="In all runs").click()
    expect(page.locator(".incident .chip").first).to_have_text("Muted")
    page.go_back()
    leak.get_by_role("button", name="Unmute").click()
    expect(leak.locator(".said")).to_have_count(0)
    expect(leak.get_by_text("Mute…")).to_be_visible()


def test_text_typed_to_mute_a_leak_survives_live_updates(train: Train, open_page: Open) -> None:
    training = train("typing-to-mute", 8, project="typing")
    page = open_page("/runs/typing-to-mute")
    leak = page.locator("article.finding").first
    expect(leak).to_be_visible(timeout=PATIENCE_MS)
    leak.get_by_text("Mute…").click()
    leak.get_by_label("For").select_option("1 week")
    reason = leak.get_by_label("Reason, if any")
    reason.fill("the buffer of Tuesday")
    page.keyboard.press("ArrowLeft")
    before = reason.element_handle()
    training.run_generations(2)
    until(page, lambda: not before.evaluate("(field) => field.isConnected"))
    expect(reason).to_be_focused()
    expect(reason).to_have_value("the buffer of Tuesday")
    assert reason.evaluate("(field) => field.selectionStart") == len("the buffer of Tuesda")
    expect(leak.get_by_label("For")).to_have_value("604800")


def test_a_run_is_compared_with_the_previous_or_a_searched_run(
    train: Train, open_page: Open
) -> None:
    for name in ("first", "second", "third"):
        train(f"compared-{name}", 3, project="compares").finish()
    page = open_page("/runs/compared-third", java_script_enabled=False)
    page.get_by_role("link", name="Compare with previous run (compared-second)").click()
    expect(page.locator(".side .name")).to_have_text(["compared-second", "compared-third"])
    page.go_back()
    page.get_by_role("link", name="Compare with…").click()
    page.get_by_label("Search runs").fill("compared-first")
    page.keyboard.press("Enter")
    expect(page.get_by_role("combobox", name="After")).to_have_value("compared-third")
    page.get_by_role("combobox", name="Before").select_option("compared-first")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".side .name")).to_have_text(["compared-first", "compared-third"])


@pytest.fixture
def receiver() -> Iterator[str]:
    """Run a receiver that accepts every message, and yield its address."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/hook"
        listening.shutdown()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_pasted_address_receives_alerts_and_a_test_message(
    tmp_path: Path, open_page: Open, receiver: str, scripts: bool
) -> None:
    with serving(tmp_path, LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8") as address:
        MadeTraining(address, "notifies").start()
        page = open_page(
            "/runs/notifies", address=address, java_script_enabled=scripts, width=390,
            expect_failed_requests=True,
        )  # fmt: skip
        page.locator("#notify").click()
        expect(page.locator(".notify")).to_contain_text("not sent anywhere yet")
        assert fits(page, 390)
        assert not scripts or violations(page) == []
        page.get_by_label("Webhook address of Slack").fill(receiver)
        page.get_by_role("button", name="Send alerts here").click()
        expect(page.get_by_role("status")).to_contain_text("receives every alert from now on")
        expect(page.get_by_label("Format")).to_have_value("")
        page.get_by_role("button", name="Send a test").click()
        expect(page.get_by_role("status")).to_contain_text("answered 204")
        expect(page.get_by_label("Message")).to_contain_text("Nothing is leaking: this is a test")
        assert fits(page, 390)
        page.go_back()
        page.get_by_role("link", name="Back to the run").click()
        page.locator("#notify").click()
        expect(page.locator(".notify")).to_contain_text("127.0.0.1")


PASSWORD = "correct horse battery"


def test_a_link_opens_one_run_in_a_browser_that_is_not_signed_in(
    tmp_path: Path, open_page: Open
) -> None:
    with serving(tmp_path, LEAKLINE_ADMIN_PASSWORD=PASSWORD) as address:
        engine = open_engine(f"sqlite:///{tmp_path}/leakline.db")
        _, secret = issue(engine, Wish("admin"), time.time())
        engine.dispose()
        training = MadeTraining(address, "shared", token=secret)
        training.start()
        training.run_generations(8)
        page = open_page("/runs/shared", address=address, width=390, expect_failed_requests=True)
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.locator("#share").click()
        page.get_by_label("Read-only link").select_option("1 day")
        assert fits(page, 390)
        assert violations(page) == []
        page.get_by_role("button", name="Create link").click()
        expect(page.get_by_label("Link")).to_contain_text("/shared?token=leakline_share_")
        assert fits(page, 390)
        assert violations(page) == []
        expect(page.get_by_role("button", name="Copy link")).to_be_visible()
        link = str(page.get_by_label("Link").text_content()).strip()
        other = open_page(link.removeprefix(address), address=address, expect_failed_requests=True)
        assert other.url == f"{address}/runs/shared"
        expect(other.locator("#live")).to_have_attribute("data-live", "live", timeout=PATIENCE_MS)
        training.run_generations(1)
        expect(other.locator('[data-part="state"]')).to_contain_text("9 of 25")
        other.get_by_role("link", name="Run info").click()
        expect(other.locator("#tab-info")).to_be_visible()
        expect(
            other.locator("#notify, .mute, #previous, .delete-run, nav[aria-label=Pages]")
        ).to_have_count(0)
        links = other.locator("a[href]").evaluate_all("(all) => all.map(({ href }) => href)")
        for link in {each for each in links if each.startswith(address)}:
            assert other.request.get(link, max_redirects=0).status == 200, link
        other.goto(f"{address}/")
        expect(other.get_by_label("Password")).to_be_visible()
        page.get_by_role("link", name="Revoke it in Settings").click()
        page.get_by_text("Revoke…").first.click()
        page.get_by_role("button", name="Revoke this token").first.click()
        other.goto(f"{address}/runs/shared")
        expect(other.get_by_label("Password")).to_be_visible()
