"""Take the screenshots of the documents: every page in light and dark, and the page of a run on a phone.

What they show is real: both stories of `leakline demo` are trained first, into a database of their own, which takes
a few minutes. With an address, the server there is shown as it is; it needs the runs before-fix and after-fix.

example: python docs/images/take.py
         python docs/images/take.py http://127.0.0.1:8765
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FOLDER = Path(__file__).parent
STORIES = ("fix", "misdiagnosis")
CHROMIUM = (
    os.environ.get("LEAKLINE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
)
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DESKTOP = {"width": 1280, "height": 1160}
PHONE = {"width": 390, "height": 844}
# The run ends below its first screen. Further down, the overlay shows paths of this machine.
SHORTER = {"run": 828, "overlay": 1000}
# Of a palette, by which a picture becomes a third as large: the colours with the largest area as they are, and others
# chosen to cover what there is. One by area alone makes the mark of a warning as red as that of a leak.
EXACT, COVERING = 96, 160
# All of them together, so that a checkout stays small.
MAX_BYTES = 2_500_000


def pages(before: str, after: str) -> dict[str, str]:
    """Name of a picture -> path of its page."""
    return {
        "list": "/",
        "run": f"/runs/{before}",
        "compare": f"/compare?before={before}&after={after}",
        "overlay": f"/overlay?run={before}&run={after}",
        "incidents": "/incidents",
        "alerts": "/alerts",
        "settings": "/settings",
    }


@contextlib.contextmanager
def trained() -> Iterator[str]:
    """The address of a server with the runs of both stories, a rule and a webhook."""
    with tempfile.TemporaryDirectory() as folder:
        # Nothing listens there: the page shows what becomes of a message that nobody takes.
        ours = {
            "LEAKLINE_DATABASE_URL": f"sqlite:///{folder}/leakline.db",
            "LEAKLINE_WEBHOOK_ALLOW": "127.0.0.0/8",
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")} | ours
        with serving(environment) as address:
            _set_up(address)
        for story in STORIES:
            command = [
                sys.executable,
                "-m",
                "leakline",
                "demo",
                "--story",
                story,
                "--port",
                "0",
                "--exit",
            ]
            subprocess.run(command, env=environment, check=True)
        with serving(environment) as address:
            yield address


@contextlib.contextmanager
def serving(environment: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "leakline", "serve", "--port", "0"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        found = re.search(r"http://\S+", server.stdout.readline())
        if found is None:
            sys.exit("the server did not start")
        yield found.group()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)


def _set_up(address: str) -> None:
    limit = {"series": "process.rss_bytes", "above": "500 MiB"}
    rule = {"name": "Much memory", "advice": "Look at the leak.", **limit}
    _ask(f"{address}/api/v1/rules", rule)
    _ask(f"{address}/api/v1/webhooks", {"url": "http://127.0.0.1:9/hook", "name": "team chat"})


def _ask(address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def shoot(browser: Browser, server: str) -> None:
    runs = {run["name"]: run["id"] for run in _ask(f"{server}/api/v1/runs?limit=200")["items"]}
    if not {"before-fix", "after-fix"} <= runs.keys():
        sys.exit("the server has no runs before-fix and after-fix: train them with leakline demo")
    wanted = pages(runs["before-fix"], runs["after-fix"])
    for theme in ("light", "dark"):
        for name, path in wanted.items():
            size = {**DESKTOP, "height": SHORTER.get(name, DESKTOP["height"])}
            with _opened(browser, f"{server}{path}", size, theme) as page:
                _save(page, f"{name}-{theme}.png")
        with _opened(browser, f"{server}{wanted['run']}", PHONE, theme) as page:
            _save(page, f"run-phone-{theme}.png")


@contextlib.contextmanager
def _opened(browser: Browser, address: str, size: dict[str, int], theme: str) -> Iterator[Page]:
    context = browser.new_context(
        viewport=size, color_scheme=theme, timezone_id="UTC", locale="en-GB"
    )  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    for chart in page.locator(".chart").all():
        if (chart.bounding_box() or {"y": size["height"]})["y"] < size["height"]:
            chart.locator("svg.main-svg").first.wait_for()
    # Fonts and charts settle.
    page.wait_for_timeout(500)
    yield page
    context.close()


def _save(page: Page, name: str) -> None:
    path = FOLDER / name
    page.screenshot(path=path)
    with Image.open(path) as taken:
        _with_few_colours(taken.convert("RGB")).save(path, optimize=True)
    print(f"{name}: {path.stat().st_size:,} bytes")


def _with_few_colours(taken: Image.Image) -> Image.Image:
    """By hand, because pillow looks a colour up in a given palette by its highest bits."""
    pixels = np.asarray(taken).astype(np.int32)
    packed = pixels @ np.array([1 << 16, 1 << 8, 1])
    found, where, area = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    largest = colours[np.argsort(-area)[:EXACT]]
    covering = taken.quantize(COVERING, Image.Quantize.MAXCOVERAGE).getpalette("RGB")
    palette = np.concatenate([largest, np.array(covering).reshape(-1, 3)])
    nearest = np.abs(colours[:, None] - palette[None]).sum(axis=2).argmin(axis=1)
    small = Image.fromarray(nearest[where].reshape(packed.shape).astype(np.uint8), mode="P")
    small.putpalette(palette.astype(np.uint8).tobytes())
    return small


def main(arguments: list[str]) -> None:
    source = contextlib.nullcontext(arguments[0].rstrip("/")) if arguments else trained()
    with source as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        shoot(browser, server)
        browser.close()
    whole = sum(path.stat().st_size for path in FOLDER.glob("*.png"))
    print(f"all: {whole:,} bytes")
    if whole > MAX_BYTES:
        sys.exit(f"the pictures have {whole:,} bytes, more than the {MAX_BYTES:,} they may have")


if __name__ == "__main__":
    main(sys.argv[1:])
