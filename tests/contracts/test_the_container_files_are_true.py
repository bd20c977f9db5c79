"""Dockerfile and docker-compose.yml name only what exists, and publish nothing beyond loopback."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def _copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
    return [source for line in lines for source in line.split()[:-1]]


def test_no_port_is_published_beyond_this_machine() -> None:
    ports = re.findall(r'^\s+- "([\d.:]+)"$', COMPOSE, re.M)
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_alone_does_not_listen_without_a_login() -> None:
    assert "LEAKLINE_INSECURE=" not in re.sub(r"#.*", "", DOCKERFILE)


def test_every_setting_is_a_documented_one() -> None:
    documented = (ROOT / "docs" / "settings.md").read_text()
    for name in re.findall(r"LEAKLINE_[A-Z_]+", COMPOSE + DOCKERFILE):
        assert f"`{name}`" in documented, name


def test_what_is_copied_into_the_image_is_not_kept_out_of_it() -> None:
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert set(_copied()) == set(kept)
    assert all((ROOT / name).exists() for name in kept)


def test_what_is_copied_is_enough_to_build_the_whole_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in _copied():
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("leakline-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "leakline_server/templates/",
        "leakline_server/static/",
        "leakline_server/migrations/env.py",
    ):
        assert any(found.startswith(name) for found in names), name
