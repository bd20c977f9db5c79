"""The built wheel serves a page, its static files and an empty database, without the checkout."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = out.glob("leakline-*.whl")
    target = out / "site"
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_the_wheel_carries_pages_migrations_and_the_example(unpacked: Path) -> None:
    for name in (
        "leakline_server/templates/base.html",
        "leakline_server/static/vendor/plotly/LICENSE",
        "leakline_server/migrations/env.py",
        "leakline/examples/erl_trading/trainer.py",
        "leakline/py.typed",
    ):
        assert (unpacked / name).is_file(), name


@pytest.mark.flow
def test_the_wheel_serves_a_page_and_its_static_files(unpacked: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The folder comes first on the path, so nothing is read from the editable install.
    process = subprocess.Popen(
        [sys.executable, "-m", "leakline", "serve", "--port", str(port)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(unpacked)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        seen = ""
        while f":{port}" not in seen:
            line = process.stdout.readline()
            assert line, f"serve ended: {seen}"
            seen += line
        where = f"import leakline_server, sys; sys.exit(not leakline_server.__file__.startswith({str(unpacked)!r}))"
        subprocess.run(
            [sys.executable, "-c", where],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(unpacked)},
            check=True,
        )
        page = _get(port, "/")
        assert b"Leakline" in page
        assert b"--" in _get(port, "/static/css/variables.css")
        assert (tmp_path / ".leakline" / "leakline.db").is_file()
    finally:
        process.terminate()
        process.wait(10)


def _get(port: int, path: str) -> bytes:
    import time

    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return bytes(answer.read())
        except ConnectionError:
            assert time.monotonic() < deadline
        except urllib.error.URLError:
            assert time.monotonic() < deadline
