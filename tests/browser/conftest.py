"""A real server process, a real Chromium, and pages that fail the test on any error or foreign request."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from tests.browser.patience import PATIENCE_MS, eventually
from tests.browser.patterns.page import add_patterns
from tests.browser.training import MadeTraining

from leakline.transport.http_delivery import request_json

if TYPE_CHECKING:
    from tests.browser.everything import World

# Chromium flags for machines without a display, GPU or network; they also turn off all background requests.
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Long enough for a busy machine; on an idle one a server exits within seconds.
ENDS_WITHIN_SECONDS = 60
expect.set_options(timeout=PATIENCE_MS)
# How Chromium's console message for a failed request begins; all other errors begin differently.
FAILED_REQUEST = "Failed to load resource: "


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


def chromium_path() -> str:
    found = os.environ.get("LEAKLINE_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUMS)), None
    )
    if found is None:
        pytest.fail(
            "the browser tests need Chromium: install it (Debian: apt-get install chromium), "
            "or name it in LEAKLINE_CHROMIUM"
        )
    return found


@contextmanager
def serving(folder: Path, port: int = 0, **settings: str) -> Iterator[str]:
    """Run ``leakline serve`` on a SQLite database in the folder and yield its address."""
    database = {"LEAKLINE_DATABASE_URL": f"sqlite:///{folder}/leakline.db"}
    environment = {**os.environ, **database, **settings}
    with (folder / "errors.log").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "leakline", "serve", "--port", str(port)],
            env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        if found is None:
            errors.seek(0)
            pytest.fail(f"the server did not start: {said}{errors.read()}")
        try:
            yield found.group()
        finally:
            process.send_signal(signal.SIGINT)
            try:
                status = process.wait(timeout=ENDS_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            assert status in (0, 130, -signal.SIGINT)
        errors.seek(0)
        assert "Traceback" not in errors.read()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run one server with something and one with nothing on every page."""
    # Imported late because this module imports us.
    from tests.browser.everything import everything

    with everything(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture
def open_page(chromium: Browser, server: str) -> Iterator[Callable[..., Page]]:
    """Open a path of the server in a new window; errors and foreign requests fail the test at its end."""
    wrong: list[str] = []
    contexts = []

    def open_path(
        path: str,
        *,
        width: int = 1280,
        height: int = 900,
        address: str = server,
        expect_failed_requests: bool = False,
        **options: object,
    ) -> Page:
        def watch(request: Request) -> None:
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(address).netloc:
                wrong.append(f"request to another host: {request.url}")

        def hear(said: ConsoleMessage) -> None:
            expected = expect_failed_requests and said.text.startswith(FAILED_REQUEST)
            if said.type == "error" and not expected:
                wrong.append(f"console: {said.text}")

        context = chromium.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
        contexts.append(context)
        add_patterns(context, address)
        page = context.new_page()
        page.on("request", watch)
        page.on("pageerror", lambda error: wrong.append(f"exception: {error}"))
        page.on("console", hear)
        page.goto(address + path)
        return page

    yield open_path
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def open_far_away(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open a file in a browser without a network; any error or other request fails the test."""
    wrong: list[str] = []
    contexts = []

    def open_file(file: Path, **options: object) -> Page:
        context = chromium.new_context(offline=True, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()

        def watch(url: str) -> None:
            own = urlsplit(url).scheme == "file" and url.split("#")[0] == file.as_uri()
            if not own and urlsplit(url).scheme not in ("data", "blob"):
                wrong.append(f"request: {url}")

        page.on("request", lambda request: watch(request.url))
        page.on("pageerror", lambda error: wrong.append(f"exception: {error}"))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.goto(file.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not wrong


LEAK, FIX = "pair-leak", "pair-fix"


@pytest.fixture(scope="session")
def two_runs(server: str) -> None:
    """Send a leaking and a fixed run, both ended, for tests that change neither."""
    for run, leaking in ((LEAK, True), (FIX, False)):
        training = MadeTraining(server, run, leaking)
        training.start()
        training.run_generations(8)
        training.finish()
        # Pages without scripts must not change after they are loaded.
        verdict = f"/runs/{run}/verdict"
        eventually(lambda at=verdict: request_json(server, "GET", at)["generations"] == 8)  # type: ignore[misc]


@pytest.fixture
def train(server: str) -> Callable[..., MadeTraining]:
    """Return a function that starts a simulated training reporting to the server."""

    def start(run: str, generations: int = 0, **options: object) -> MadeTraining:
        training = MadeTraining(server, run, **options)  # type: ignore[arg-type]
        training.start()
        training.run_generations(generations)
        return training

    return start
