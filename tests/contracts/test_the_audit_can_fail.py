"""`make audit` fails for a licence, a known hole, an old image, and a look-up that did not happen, and never claims one
that did not.

With programs of the test in the place of pip-licenses and pip-audit; what they find today is for CI.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATED = Path("requirements", "dated.txt")
TODAY = date.today()
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
    """Audit a copy of what ships, which the test may have changed before."""
    if not (folder / "Dockerfile").exists():
        copy_what_ships(folder)
    tools = folder / "bin"
    tools.mkdir()
    for name, what in (("pip-licenses", licences), ("pip-audit", holes)):
        (tools / name).write_text(f"#!/bin/bash\n{what}\n")
        (tools / name).chmod(0o755)
    return subprocess.run(
        [folder / ".ci" / "audit", folder, python], env={**os.environ, "OFFLINE": offline},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def copy_what_ships(folder: Path) -> None:
    """All of it published today, so that these tests are the same next year."""
    for name in (".ci", "requirements", "deploy", "static/vendor"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("Dockerfile", "docker-compose.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    text = re.sub(r" \d{4}-\d\d-\d\d$", f" {TODAY}", (folder / DATED).read_text(), flags=re.M)
    (folder / DATED).write_text(text)


def replace_in(file: Path, pattern: str, by: str) -> None:
    text, count = re.subn(pattern, by, file.read_text(), flags=re.M)
    assert count > 0
    file.write_text(text)


@pytest.mark.parametrize("offline", ["", "ok", "1"])
@pytest.mark.parametrize("days", [0, 183, 184, 545])
def test_an_image_older_than_half_a_year_fails_where_holes_are_looked_up(
    tmp_path: Path, offline: str, days: int
) -> None:
    copy_what_ships(tmp_path)
    day = TODAY - timedelta(days=days)
    replace_in(tmp_path / DATED, r"^(postgres:\S+) .*$", rf"\1 {day}")
    ended = audited(tmp_path, FINE, FINE, offline)
    is_old = days > 183
    assert ended.returncode == (is_old and not offline), ended.stderr
    assert (f"of {day} is {days} days old" in ended.stderr) == is_old
    assert ("each with a day of the last half year" in ended.stderr) != is_old


@pytest.mark.parametrize(
    ("file", "pattern", "by", "why"),
    [
        ("Dockerfile", r"^FROM python:\S+$", "FROM python:3.99.0-slim", "python:3.99.0-slim ships"),
        ("docker-compose.yml", r"image: nginx:\S+", "image: 'nginx:9.9'  # new", "nginx:9.9 ships"),
        ("deploy/nginx.conf", r"\Z", "  - image: registry.example/sidecar:1\n", "registry.example/sidecar:1 ships"),
        (str(DATED), r"\Z", f"redis:8.0.0 {TODAY}\n", "redis:8.0.0 is named by nothing"),
        (str(DATED), r"^(nginx:\S+) .*$", r"\1 yesterday", "yesterday, which is not a day"),
        (str(DATED), r"^(nginx:\S+) .*$", rf"\1 {TODAY + timedelta(days=1)}", "which is still to come"),
        (str(DATED), r"^plotly.*\n", "", "plotly-basic-4.1.1.min.js ships"),
    ],
)  # fmt: skip
def test_what_ships_without_a_day_fails(
    tmp_path: Path, file: str, pattern: str, by: str, why: str
) -> None:
    copy_what_ships(tmp_path)
    replace_in(tmp_path / file, pattern, by)
    ended = audited(tmp_path, FINE, FINE)
    assert ended.returncode == 1
    assert why in ended.stderr and "Traceback" not in ended.stderr
    assert "requirements/dated.txt" in ended.stderr


def test_holes_are_looked_up_in_what_builds_the_image_too(tmp_path: Path) -> None:
    ended = audited(tmp_path, FINE, 'echo "$*"')
    for name in ("requirements/server.txt", "requirements/build.txt"):
        assert f"--requirement {name}" in ended.stdout


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
