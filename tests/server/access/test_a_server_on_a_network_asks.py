"""The real process on an address of a network: it starts when somebody can sign in, and then asks everybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flow


def leakline(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "leakline", *arguments], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_a_training_reports_to_a_server_that_asks(serve: Any, tmp_path: Path) -> None:
    refused = leakline(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    for word in ("0.0.0.0", "leakline password", "leakline token create", "LEAKLINE_INSECURE"):
        assert word in refused.stderr
    assert not (tmp_path / ".leakline-server").exists()

    made = leakline(tmp_path, "token", "create", "--project", "erl")
    assert made.returncode == 0, made.stderr
    # With a token that only adds, nobody could sign in yet.
    assert leakline(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0").returncode == 2
    reader = leakline(tmp_path, "token", "create", "--scope", "read").stdout.strip()
    admin = leakline(tmp_path, "token", "create", "--scope", "admin").stdout.strip()
    server = serve(arguments=["--host", "0.0.0.0"])

    # As docs/access.md begins: the token says which project it is.
    program = (
        "import leakline\n"
        "run = leakline.init(name='asked')\n"
        "for generation in range(3):\n"
        "    run.generation(generation)\n"
        "run.finish()\n"
    )
    for number, token in enumerate(("", "leakline_ingest_wrong", made.stdout.strip())):
        # What one was not rid of, the next in the same folder would send.
        environment = {
            "LEAKLINE_SERVER": server.url,
            "LEAKLINE_DIR": str(tmp_path / f"spool{number}"),
        }
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ, **environment, "LEAKLINE_TOKEN": token}, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ("token" in ended.stderr) == (token != made.stdout.strip()), ended.stderr
    # What was recorded without a server finds its way as well.
    offline = {"LEAKLINE_MODE": "offline", "LEAKLINE_DIR": str(tmp_path / "later")}
    subprocess.run(
        [sys.executable, "-c", program.replace("asked", "later")], cwd=tmp_path, timeout=60,
        env={**os.environ, **offline}, check=True,
    )  # fmt: skip
    sent = leakline(
        tmp_path, "sync", "later", "--server", server.url, LEAKLINE_TOKEN=made.stdout.strip()
    )
    assert sent.returncode == 0, sent.stderr
    listed = leakline(tmp_path, "runs", "--server", server.url, "--json", LEAKLINE_TOKEN=reader)
    assert listed.returncode == 0, listed.stderr
    runs = {
        (run["name"], run["project"], run["state"]) for run in json.loads(listed.stdout)["items"]
    }
    assert runs == {(name, "erl", "finished") for name in ("asked", "later")}
    said = leakline(tmp_path, "runs", "--server", server.url)
    assert (said.returncode, said.stdout) == (1, "")
    assert "LEAKLINE_TOKEN" in said.stderr

    def status(path: str, token: str = "") -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        found: int = server.request("GET", path, headers=headers)[0]
        return found

    assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
    assert status("/metrics", reader) == status("/api/v1/tokens", admin) == 200
    assert status("/api/v1/tokens", reader) == 403
