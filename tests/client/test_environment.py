"""Commit, command line, packages and machine: what a post-mortem asks for, read once at the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakline.core.environment import command_line, installed_packages, masked, read_environment
from leakline_server.limits import MAX_ENVIRONMENT_BYTES

SHOW = (
    "import json, sys\n"
    "from leakline.core.environment import read_environment\n"
    "print(json.dumps(read_environment()))\n"
)


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    def run(folder: Path, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", str(folder), *arguments],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()

    return run


@pytest.fixture
def project(tmp_path: Path, git: Callable[..., str]) -> Path:
    folder = tmp_path / "project"
    (folder / "pack").mkdir(parents=True)
    (folder / "train.py").write_text(SHOW)
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "train.py").write_text(SHOW)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def shown(*arguments: str, cwd: Path, **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**os.environ, **environ}, text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_the_commit_is_that_of_the_script_wherever_it_is_started(
    project: Path, tmp_path: Path, git: Callable[..., str]
) -> None:
    commit = git(project, "rev-parse", "HEAD")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = shown(str(project / "train.py"), cwd=elsewhere)
    assert (found["commit"], found["dirty"]) == (commit, False)
    (project / "train.py").write_text(SHOW + "# changed\n")
    assert shown(str(project / "train.py"), cwd=elsewhere)["dirty"] is True


@pytest.mark.parametrize(
    "address, told",
    [
        ("/srv/git/project.git", None),
        ("file:///srv/git/project.git", None),
        ("../project", None),
        ("https://me:secret@github.com/erl/trading.git", "https://github.com/erl/trading.git"),
        ("ssh://git@forge.example:22/erl/trading", "ssh://forge.example:22/erl/trading"),
        ("git@github.com:erl/trading.git", "git@github.com:erl/trading.git"),
    ],
)
def test_where_the_code_was_fetched_from_is_told_without_passwords_and_folders(
    project: Path, git: Callable[..., str], address: str, told: str | None
) -> None:
    assert "repository" not in shown("train.py", cwd=project)
    git(project, "remote", "add", "origin", address)
    assert shown("train.py", cwd=project).get("repository") == told


def test_a_module_tells_its_command_line_and_commit(project: Path, git: Callable[..., str]) -> None:
    found = shown("-m", "pack.train", "--lr", "0.1", "--api-key", "abc", cwd=project)
    assert found["command_line"][1:] == ["-m", "pack.train", "--lr", "0.1", "--api-key", "***"]
    assert found["commit"] == git(project, "rev-parse", "HEAD")


def test_a_rank_of_a_launcher_and_a_notebook_say_so(project: Path) -> None:
    found = shown(
        "-c", SHOW, cwd=project, WORLD_SIZE="8", SLURM_JOB_ID="4711", JPY_SESSION_NAME="/work/a.ipynb",
    )  # fmt: skip
    assert (found["world_size"], found["job"]) == ("8", "4711")
    assert found["notebook"] == "/work/a.ipynb"
    # No script: the working folder is all there is.
    assert "commit" in found


def test_the_machine_is_told(tmp_path: Path) -> None:
    found = shown("-c", SHOW, cwd=tmp_path)
    assert found["cpu_count"] == os.cpu_count()
    assert found["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["python"] == sys.version.split()[0]
    assert "commit" not in found
    assert "gpus" not in found


def test_a_working_folder_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    found = shown("-c", f"import shutil\nshutil.rmtree({str(folder)!r})\n{SHOW}", cwd=folder)
    assert "commit" not in found


def test_devices_are_named_only_when_torch_has_set_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        ready = False

        def is_initialized(self) -> bool:
            return self.ready

        def device_count(self) -> int:
            return 2

        def get_device_name(self, index: int) -> str:
            assert self.ready
            return f"NVIDIA H200 {index}"

    class Torch:
        cuda = Cuda()

    monkeypatch.setitem(sys.modules, "torch", Torch())
    assert "gpus" not in read_environment()
    Torch.cuda.ready = True
    assert read_environment()["gpus"] == ["NVIDIA H200 0", "NVIDIA H200 1"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--token", "abc", "--x"], ["--token", "***", "--x"]),
        (["--hf-token=abc"], ["--hf-token=***"]),
        (["wandb.api_key=abcdef"], ["wandb.api_key=***"]),
        (["db.password=hunter2", "lr=0.1"], ["db.password=***", "lr=0.1"]),
        (["postgres://me:pass@db/x"], ["postgres://me:***@db/x"]),
        (["--max-tokens=4096"], ["--max-tokens=***"]),
        (["max_tokens=4096"], ["max_tokens=4096"]),
    ],
)
def test_secrets_of_the_command_line_are_left_out(given: list[str], kept: list[str]) -> None:
    assert command_line(given) == kept


def test_masking_costs_little_on_a_line_made_to_cost_much() -> None:
    for text in ("token" * 80, "://" + ":" * 400, "api_key = " * 40, "-" * 400, "bearer " * 60):
        assert len(masked(text)) <= 2 * len(text)


def test_what_is_told_stays_below_what_a_server_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(500):
        (tmp_path / f"{'long_' * 30}{i}-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", *["é" * 400] * 200])
    for name in ("JPY_SESSION_NAME", "WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "x" * 50_000)
    found = read_environment()
    assert 40_000 < len(json.dumps(found)) < MAX_ENVIRONMENT_BYTES
    # The first of each are told.
    assert found["command_line"][:2] == ["python", "train.py"]
    assert f"{'long-' * 30}0" in found["packages"]


def test_packages_are_told_by_name_and_version(tmp_path: Path) -> None:
    for name in ("Some_Package-1.2.dist-info", "other-3.dist-info", "no version", "x.dist-info"):
        (tmp_path / name).mkdir()
    assert installed_packages([str(tmp_path), str(tmp_path / "missing")]) == {
        "some-package": "1.2", "other": "3",
    }  # fmt: skip
