"""`make audit` fails for a licence, a known hole, and a look-up that did not happen, and never says of one that it did.

With programs of the test in the place of pip-licenses and pip-audit; what they find today is for CI.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "audit"
FINE = "exit 0"
HOLE = "echo 'starlette 0.0.1 PYSEC-2026-1'; exit 1"
# As pip-audit ends where there is no way to the service: with a sentence, or with the traceback of who looked.
UNREACHABLE = "echo 'ERROR:pip_audit._cli:Could not connect to the feed' >&2; exit 1"
UNREACHABLE_TOO = "echo \"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x'): Max retries\" >&2; exit 1"
# A hole whose words are those of a network, and a package that nobody knows.
TELLING_HOLE = (
    "echo 'starlette 0.0.1 PYSEC-2026-1 requests that timed out: a ConnectionError leaks'; exit 1"
)
UNKNOWN = "echo 'ERROR:pip_audit._cli:starlette: Dependency not found on PyPI and could not be audited' >&2; exit 1"

# A mirror has none of them; a service that lacks one has the others.
MIRROR = """
if [[ $* = *--strict* ]]; then
  echo 'ERROR:pip_audit._cli:x: Dependency not found on PyPI and could not be audited' >&2; exit 1
fi
echo '{"dependencies": [{"name": "x", "skip_reason": "not found"}, {"name": "y", "skip_reason": "not found"}]}'
"""
UNKNOWN_TO_A_SERVICE = MIRROR.replace(
    '"name": "y", "skip_reason": "not found"', '"name": "y", "vulns": []'
)


def audited(
    folder: Path, licences: str, holes: str, offline: str = "", python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    tools = folder / "bin"
    tools.mkdir()
    for name, what in (("pip-licenses", licences), ("pip-audit", holes)):
        (tools / name).write_text(f"#!/bin/bash\n{what}\n")
        (tools / name).chmod(0o755)
    return subprocess.run(
        [SCRIPT, folder, python], env={**os.environ, "OFFLINE": offline},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("offline", ["", "ok", "1"])
def test_a_licence_that_is_not_accepted_fails(tmp_path: Path, offline: str) -> None:
    ended = audited(tmp_path, "exit 1", FINE, offline)
    assert ended.returncode == 1
    assert "a licence is not among those" in ended.stderr


@pytest.mark.parametrize("offline", ["", "ok"])
def test_a_known_hole_fails_and_is_shown(tmp_path: Path, offline: str) -> None:
    ended = audited(tmp_path, FINE, HOLE, offline)
    assert ended.returncode == 1
    assert "PYSEC-2026-1" in ended.stdout
    assert "make lock" in ended.stderr


@pytest.mark.parametrize("said", [UNREACHABLE, UNREACHABLE_TOO, MIRROR])
@pytest.mark.parametrize(("offline", "status"), [("", 1), ("ok", 0)])
def test_a_service_that_cannot_be_reached_is_never_good_news(
    tmp_path: Path, offline: str, status: int, said: str
) -> None:
    ended = audited(tmp_path, FINE, said, offline)
    assert ended.returncode == status
    assert "NOT looked up" in ended.stderr
    assert "no known hole" not in ended.stderr


@pytest.mark.parametrize(
    "said", ["echo 'Traceback'; exit 1", TELLING_HOLE, UNKNOWN, UNKNOWN_TO_A_SERVICE]
)
def test_what_fails_for_another_reason_is_not_taken_for_a_missing_network(
    tmp_path: Path, said: str
) -> None:
    ended = audited(tmp_path, FINE, said, "ok")
    assert (ended.returncode, "make lock" in ended.stderr) == (1, True)


def test_without_trying_it_says_so(tmp_path: Path) -> None:
    ended = audited(tmp_path, FINE, HOLE, "1")
    assert (ended.returncode, "NOT looked up" in ended.stderr) == (0, True)


def test_a_package_whose_licence_cannot_be_read_fails(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/bash\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    ended = audited(tmp_path, FINE, FINE, python=str(bare))
    assert ended.returncode == 1
    assert "fastapi" in ended.stderr


def test_with_nothing_found_it_passes(tmp_path: Path) -> None:
    ended = audited(tmp_path, FINE, FINE)
    assert ended.returncode == 0, ended.stderr
    assert "no known hole" in ended.stderr
