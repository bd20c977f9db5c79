"""Debian's nginx with the configuration of docker-compose.yml, but with other ports and a test folder for /tmp."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
LISTENS = "listen 8080;"
SERVERS = ("leakline-1:8765", "leakline-2:8765")


def program() -> str:
    found = os.environ.get("LEAKLINE_NGINX") or shutil.which(
        "nginx", path=f"{os.environ['PATH']}:/usr/sbin"
    )
    if found is None:
        pytest.fail(
            "needs nginx: install it (Debian: apt-get install nginx) or name it with LEAKLINE_NGINX",
            pytrace=False,
        )
    return found


def configured(port: int, servers: Sequence[int], folder: Path) -> str:
    """Return the configuration with these ports and this folder, and nothing else changed."""
    text = CONFIGURATION.read_text()
    changes = {
        LISTENS: f"listen 127.0.0.1:{port};",
        "/tmp/": f"{folder}/",
        "/dev/stdout": f"{folder}/access.log",
    }
    changes |= {
        f"server {name}": f"server 127.0.0.1:{to}"
        for name, to in zip(SERVERS, servers, strict=True)
    }
    for of_compose, of_ours in changes.items():
        assert of_compose in text, f"{CONFIGURATION.name} has no {of_compose}"
        text = text.replace(of_compose, of_ours)
    return text


@dataclass
class Proxy:
    port: int
    folder: Path

    @property
    def access_log(self) -> str:
        return (self.folder / "access.log").read_text()


Change = Callable[[str], str]


@contextlib.contextmanager
def running(servers: Sequence[int], change: Change = lambda text: text) -> Iterator[Proxy]:
    """Run nginx; ``change`` edits the configuration as the documents say, after the test's ports are set."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    # Not in pytest's own folder, which only we may enter: the workers may be another user.
    folder = Path(tempfile.mkdtemp(prefix="leakline-nginx-"))
    (folder / "nginx.conf").write_text(change(configured(port, servers, folder)))
    also = "daemon off;" + (" user root;" if os.getuid() == 0 else "")
    process = subprocess.Popen(
        [program(), "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf", "-g", also],
        stdout=subprocess.DEVNULL, stderr=(folder / "error.log").open("w"),
    )  # fmt: skip
    try:
        _until_it_listens(process, port, folder)
        yield Proxy(port, folder)
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder)


def _until_it_listens(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        said = (folder / "error.log").read_text()
        assert process.poll() is None, f"nginx does not start: {said}"
        assert time.monotonic() < deadline, f"nginx does not listen: {said}"
        pause.wait(0.02)
