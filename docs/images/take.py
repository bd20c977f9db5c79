"""Take the screenshots of the README from a server that has a leaking and a fixed run.

example: leakline demo, then in another terminal: python docs/images/take.py http://127.0.0.1:8765 BEFORE_ID AFTER_ID
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent
CHROMIUM = (
    os.environ.get("LEAKLINE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
)
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def take(page: Page, address: str, name: str) -> None:
    page.goto(address)
    page.locator(".chart svg.main-svg").first.wait_for()
    # Charts further down are drawn a moment later.
    page.wait_for_timeout(500)
    page.screenshot(path=FOLDER / name)


def main(server: str, before: str, after: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = browser.new_context(viewport={"width": 1280, "height": 1120})
        page = context.new_page()
        take(page, f"{server}/runs/{before}", "run.png")
        take(page, f"{server}/compare?before={before}&after={after}", "compare.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
