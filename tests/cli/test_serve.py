"""`leakline serve`: a port that is not the default is named to trainings and commands, and nobody need read that."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest
from tests.cli.conftest import page_at


def serve(folder: Path, port: int = 0, unbuffered: str = "1") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", str(port)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip


def test_another_port_is_told_with_what_trainings_need(tmp_path: Path) -> None:
    process = serve(tmp_path)
    assert process.stdout is not None
    try:
        first, second = process.stdout.readline(), process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    found = re.match(r"Leakline serves (http://127\.0\.0\.1:\d+)\S*  \(Ctrl-C ends it\)", first)
    assert found is not None, first
    assert second == f"trainings and commands need: export LEAKLINE_SERVER={found[1]}\n"


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_server_whose_banner_nobody_reads_serves_on(tmp_path: Path, unbuffered: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = serve(tmp_path, port, unbuffered)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    try:
        assert _answers(f"http://127.0.0.1:{port}/healthz", seconds=30)
        # Longer than it takes to end.
        time.sleep(0.5)
        assert _answers(f"http://127.0.0.1:{port}/healthz", seconds=1)
    finally:
        process.terminate()
        errors = process.stderr.read()
        status = process.wait(30)
    assert (status, errors) == (0, "")


def _answers(address: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return bool(page_at(address))
        except urllib.error.URLError:
            time.sleep(0.05)
    return False
