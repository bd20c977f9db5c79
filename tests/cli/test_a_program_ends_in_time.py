"""`leakline run` when its program has ended: what is left is sent, and its exit status is not kept back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.conftest import by_the_minute, made_snapshots, wait_for_verdict
from tests.cli.programs import Place

from leakline.closing import closing_words
from leakline.delivery import request_json
from leakline.settings import Settings
from leakline.snapshot import Batch, ProcessIdentity, batch_to_wire


def test_a_server_shows_the_run_and_says_the_verdict(
    place: Place, server: str, leakline: Any
) -> None:
    said = place.python("print('hello')", "--server", server, "--project", "plain", "--tag", "x")
    first, last = said.stderr.splitlines()
    url = first.split(" -> ")[1]
    assert last.endswith(f"-> {url}")
    run = request_json(server, "GET", f"/runs/{url.rpartition('/')[2]}")
    assert (run["project"], run["tags"], run["state"]) == ("plain", ["x"], "finished")
    assert (run["unit"], run["generations"]) == ("minute", 0)
    # The gate of docs/ci.md: nobody can judge it, so it does not pass.
    gate = ("verdict", run["id"], "--server", server, "--fail-on")
    assert leakline(*gate, "leaking,learning").status == 3
    assert leakline(*gate, "leaking").status == 0


def test_the_last_line_says_a_word_once(place: Place, server: str) -> None:
    """As that of what is worked out here: the sentence of the server begins with its status."""
    said = place.python("print('hello')", "--server", server)
    run = said.stderr.splitlines()[0].rpartition("/")[2]
    minutes = tuple(by_the_minute(made_snapshots(0)))[:3]
    batch = Batch(ProcessIdentity("more", rank=1), minutes)
    request_json(server, "POST", f"/runs/{run}/batches", batch_to_wire(batch))
    request_json(server, "PATCH", f"/runs/{run}", {"state": "finished"})
    wait_for_verdict(server, run, lambda found: "3 minutes" in found["summary"])
    settings = Settings(run, server=server, directory=place.folder / ".leakline")
    assert closing_words(settings).startswith("learning: Not judged: the run ended after 3 minutes")


def test_a_killed_program_is_told_to_the_server(place: Place, server: str) -> None:
    said = place.python(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "--server", server
    )
    assert said.returncode == -signal.SIGKILL
    run = said.stderr.split("/runs/")[1].split()[0]
    assert request_json(server, "GET", f"/runs/{run}")["state"] == "killed"


class Mute:
    """A server that takes connections and never answers."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        self.asked = threading.Event()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._listening.accept()[0])
            except OSError:
                return
            self.asked.set()

    def close(self) -> None:
        # Wakes who waits in it.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self.taken:
            connection.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    server = Mute()
    yield server
    server.close()


def test_a_server_that_does_not_answer_is_asked_once_by_all_the_short_programs(
    place: Place, mute: Mute
) -> None:
    said = place.python(
        """
        import subprocess, sys
        for _ in range(2):
            subprocess.run([sys.executable, "-c", "pass"], check=True)
        sys.exit(6)
        """,
        "--children", "--server", mute.address,
    )  # fmt: skip
    assert said.returncode == 6
    assert len(list(place.recorded())) == 3
    assert len(mute.taken) == 1
    last = said.stderr.splitlines()[-1]
    assert f"; no Leakline server answers at {mute.address} (" in last and "leakline sync" in last
    assert len(said.stderr.splitlines()) == 2, said.stderr


@pytest.fixture(scope="module")
def that_asks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server that asks who everybody is, and a token that may read there and no more."""
    folder = tmp_path_factory.mktemp("asks")
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "LEAKLINE_ADMIN_PASSWORD": "of nobody else",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    address = "http://" + process.stdout.readline().split("http://")[1].split()[0]
    made = [sys.executable, "-m", "leakline", "token", "create", "--scope", "read"]
    token = subprocess.check_output(made, cwd=folder, env=environment, text=True).strip()
    yield address, token
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("token", "status"), [("", 401), ("lkl_" + "0" * 43, 401), ("of a reader", 403)]
)
def test_the_last_line_of_a_short_program_says_why_its_server_has_nothing(
    place: Place, that_asks: tuple[str, str], token: str, status: int
) -> None:
    address, of_a_reader = that_asks
    shown = of_a_reader if token == "of a reader" else token
    more = {"LEAKLINE_TOKEN": shown} if shown else {}
    said = place.python("print('hello')", "--server", address, **more)
    assert (said.returncode, said.stdout) == (0, "hello\n")
    last = said.stderr.splitlines()[-1]
    assert last.startswith("leakline: learning: ")
    assert f"; {address} does not accept this run ({status}: " in last
    assert "; upload it with: leakline sync " in last


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_upload_and_the_exit_status_stays(
    place: Place, mute: Mute, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        place.line([sys.executable, "-c", "raise SystemExit(7)"], "--server", mute.address),
        cwd=place.folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert mute.asked.wait(30)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 7
    assert "not everything was sent; upload it with: leakline sync" in errors.splitlines()[-1]
