"""The steps of docs/quickstart.md from the first command to the last, in an environment without Leakline.

The installation takes the longest path: a source archive of this checkout, unpacked elsewhere, built into a wheel, and
found by pip. Only Leakline's dependencies are borrowed from the environment of the tests.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import leakline

pytestmark = [pytest.mark.flow, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", QUICKSTART, re.M | re.S)
COMMANDS = [text for language, text in BLOCKS if language == "sh"]
PROGRAM, _ = (text for language, text in BLOCKS if language == "python")
(SHOWN,) = (text for language, text in BLOCKS if not language)
# Variables that would leak the checkout or settings of the environment into the test.
LEFT_OUT = ("PYTHON", "LEAKLINE_", "VIRTUAL_ENV", "PIP_")


@dataclass
class Machine:
    """A folder and an environment with pip but without `leakline`."""

    folder: Path
    environment: dict[str, str]

    def shell(self, lines: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


def hatchling(target: str, source: Path, out: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=source, check=True, capture_output=True, env={**os.environ, "LEAKLINE_BUILD_NATIVE": "0"},
    )  # fmt: skip
    (built,) = out.glob("leakline-*")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(hatchling("sdist", ROOT, folder / "archive")) as archive:
        archive.extractall(folder / "here", filter="data")
    (source,) = (folder / "here").iterdir()
    return hatchling("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("machine")
    home = folder / "python"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    borrow(folder / "borrowed", home)
    pip = home / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {home}/bin/python -m pip "$@"\n')
    pip.chmod(0o755)
    (folder / "work").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LEFT_OUT)}
    settings = {
        "PATH": f"{home}/bin{os.pathsep}{os.environ['PATH']}", "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent), "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore", "PIP_NO_COMPILE": "1", "LEAKLINE_PORT": "0",
        # The cost of a heap scan depends on other load, and the number of scans depends on their cost.
        "LEAKLINE_MAX_OVERHEAD": "1",
    }  # fmt: skip
    machine = Machine(folder / "work", kept | settings)
    assert "No module named 'leakline'" in machine.shell("python -c 'import leakline'").stderr
    done = machine.shell(COMMANDS[0])
    assert done.returncode == 0, done.stderr
    return machine


def borrow(folder: Path, home: Path) -> None:
    """Link everything installed here except Leakline, which reaches this process in other ways."""
    folder.mkdir()
    for path in {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}:
        for each in Path(path).iterdir():
            if "leakline" not in each.name.lower():
                (folder / each.name).symlink_to(each)
    (site,) = home.glob("lib/python*/site-packages")
    # The folder itself is not searched for .pth files, so an editable install is not picked up.
    (site / "borrowed.pth").write_text(f"{folder}\n")


@pytest.fixture(scope="module")
def address(installed: Machine) -> Iterator[str]:
    assert COMMANDS[1].strip() == "leakline serve"
    process = subprocess.Popen(
        [f"{installed.environment['PATH'].split(os.pathsep)[0]}/leakline", "serve"],
        cwd=installed.folder, env=installed.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\w.:]+", process.stdout.readline())
        assert found is not None
        installed.environment["LEAKLINE_SERVER"] = found.group()
        yield found.group()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def test_the_wheel_from_the_source_archive_equals_that_of_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    ours = zipfile.ZipFile(hatchling("wheel", ROOT, tmp_path)).namelist()
    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(ours)
    assert not [name for name in ours if name.startswith("leakline_server/docs/") and name.endswith(".py")]  # fmt: skip


def test_the_installed_package_is_the_one_that_runs(installed: Machine, wheel: Path) -> None:
    code = "import leakline, leakline_server as s; print(leakline.__file__, s.__file__)"
    said = installed.shell(f"python -c '{code}'")
    assert str(ROOT) not in said.stdout and said.stdout.count("site-packages") == 2
    assert wheel.name.startswith(f"leakline-{leakline.__version__}-")
    assert installed.shell("leakline --version").stdout.strip() == f"leakline {leakline.__version__}"  # fmt: skip


def test_an_installed_server_has_its_pages_documents_and_static_files(
    address: str, installed: Machine
) -> None:
    for path, part in (
        ("/", b"Leakline"), ("/static/css/variables.css", b"--"), ("/static/js/leakline.js", b"TensorFlow.js"),
        ("/docs", b"Documentation"), ("/docs/quickstart", b"Quickstart"), ("/docs/images/run-dark.png", b"PNG"),
        ("/docs/reference/api", b"/api/v1/runs"),
    ):  # fmt: skip
        with urllib.request.urlopen(address + path, timeout=20) as answer:
            assert part in answer.read(), path
    assert (installed.folder / ".leakline-server" / "leakline.db").is_file()


def test_the_commands_of_the_quickstart_work_in_order(address: str, installed: Machine) -> None:
    (installed.folder / "train.py").write_text(PROGRAM)
    _, _, train, verdict, fix, compare, gate = COMMANDS

    done = [installed.shell(each) for each in (train, verdict, fix, compare, gate)]
    assert [each.returncode for each in done] == [0] * 5, "".join(each.stderr for each in done)
    trained, judged, _, compared, _ = done
    assert f"{address}/runs/" in trained.stderr
    # Without numbers, which depend on the machine.
    shown, first = (
        re.sub(r"\d+\.\d+", "#", text.splitlines()[0]) for text in (SHOWN, judged.stdout)
    )
    assert first == shown
    assert "__main__.Trainer.finished[*]" in judged.stdout
    assert "collections.deque(maxlen=8)" in (installed.folder / "train_fixed.py").read_text()
    assert "fixed" in compared.stdout.splitlines()[0].lower(), compared.stdout
    # The gate also fails in the opposite direction.
    other = gate.replace("before-fix", "x-fix").replace("after-fix", "before-fix")
    assert installed.shell(other.replace("x-fix", "after-fix")).returncode == 3
