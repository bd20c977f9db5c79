"""Schemathesis reads the description of a real server, asks every operation for what it allows and forbids, and finds
nothing: no 5xx, no answer that is not described, nothing wrong that is taken, nothing right that is refused.

`make test-weekly` asks a hundred times as much.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.flow

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
# Of each operation. Few of them are made in seconds.
EXAMPLES: Final = int(os.environ.get("LEAKLINE_FUZZ_EXAMPLES", "2"))
PHASES: Final = "fuzzing" if EXAMPLES < 10 else "examples,coverage,fuzzing,stateful"


def test_every_operation_does_as_it_is_described(
    serve: Any, database_url: str, make_run: Any, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    server = serve(arguments=["--database-url", database_url])
    for name in ("r1", "r2", "r3", "r4"):
        run = make_run(id=name)
        assert server.request("POST", "/api/v1/runs", run.header)[0] == 201
        assert server.request("POST", f"/api/v1/runs/{name}/batches", run.wire(0, 60))[0] == 200
    description = f"{server.url}/api/v1/openapi.json"
    operations = sum(map(len, server.request("GET", "/api/v1/openapi.json")[1]["paths"].values()))
    ended = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", description,
            "--checks", "all", "--phases", PHASES, "--max-examples", str(EXAMPLES), "--seed", "1",
            "--continue-on-failure",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=3_600,
    )  # fmt: skip
    said = ended.stdout + ended.stderr
    sys.stderr.write(said)
    assert ended.returncode == 0, said[-20_000:]
    tested = re.search(r"Tested:\s+(\d+)", said)
    assert tested and int(tested[1]) == operations, said
    assert server.request("GET", "/readyz")[0] == 200
    assert server.process.poll() is None
