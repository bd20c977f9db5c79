"""Commit, command line, packages and machine of a run, read once at its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakline.core.environment import (
    _repository,
    command_line,
    installed_packages,
    masked,
    read_environment,
)
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


def test_the_commit_is_that_of_the_script_whatever_the_working_folder(
    project: Path, tmp_path: Path, git: Callable[..., str]
) -> None:
    commit = git(project, "rev-parse", "HEAD")
    script = str(project / "train.py")
    found = shown(script, cwd=tmp_path)
    assert (found["commit"], found["dirty"]) == (commit, False)
    assert "repository" not in found
    Path(script).write_text(SHOW + "# changed\n")
    git(project, "remote", "add", "origin", "https://me:secret@github.com/erl/trading.git")
    found = shown(script, cwd=tmp_path)
    assert found["dirty"] is True
    assert found["repository"] == "https://github.com/erl/trading.git"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/srv/git/project.git", None),
        ("file:///srv/git/project.git", None),
        ("ssh://git@forge.example:22/erl/trading", "ssh://forge.example:22/erl/trading"),
        ("git@github.com:erl/trading.git", "git@github.com:erl/trading.git"),
    ],
)
def test_the_repository_url_contains_no_password_and_no_folder(
    tmp_path: Path, git: Callable[..., str], address: str, shown: str | None
) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "remote", "add", "origin", address)
    assert _repository(tmp_path) == shown


def test_a_module_is_recorded_with_command_line_launcher_and_machine(
    project: Path, git: Callable[..., str]
) -> None:
    arguments = ("-m", "pack.train", "--lr", "0.1", "--api-key")
    environ = {"WORLD_SIZE": "8", "SLURM_JOB_ID": "4711", "JPY_SESSION_NAME": "/home/a.ipynb"}
    found = shown(*arguments, "abc", cwd=project, **environ)
    assert found["command_line"][1:] == [*arguments, "***"]
    assert found["commit"] == git(project, "rev-parse", "HEAD")
    assert (found["world_size"], found["job"]) == ("8", "4711")
    assert found["notebook"] == "/home/a.ipynb"
    assert found["cpu_count"] == os.cpu_count()
    assert found["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["python"] == sys.version.split()[0]
    assert "gpus" not in found


def test_without_a_script_the_commit_is_that_of_the_working_folder(project: Path) -> None:
    assert "commit" in shown("-c", SHOW, cwd=project)
    assert "commit" not in shown("-c", SHOW, cwd=project.parent)


def test_a_deleted_working_folder_is_tolerated(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    found = shown("-c", f"import shutil\nshutil.rmtree({str(folder)!r})\n{SHOW}", cwd=folder)
    assert "commit" not in found


def test_devices_are_listed_only_after_torch_initialized_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = list[str]()
    cuda = SimpleNamespace(
        is_initialized=lambda: bool(names),
        device_count=lambda: 2,
        get_device_name=names.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert "gpus" not in read_environment()
    names += ["NVIDIA H200 0", "NVIDIA H200 1"]
    assert read_environment()["gpus"] == names


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
def test_secrets_on_the_command_line_are_masked(given: list[str], kept: list[str]) -> None:
    assert command_line(given) == kept


def test_masking_a_hostile_line_is_fast() -> None:
    for text in ("token" * 80, "://" + ":" * 400, "api_key = " * 40, "-" * 400, "bearer " * 60):
        assert len(masked(text)) <= 2 * len(text)


def test_an_environment_stays_below_the_limit_of_the_server(
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
    # The first of each are kept.
    assert found["command_line"][:2] == ["python", "train.py"]
    assert f"{'long-' * 30}0" in found["packages"]


def test_packages_have_names_and_versions(tmp_path: Path) -> None:
    for name in ("Some_Package-1.2.dist-info", "other-3.dist-info", "no version", "x.dist-info"):
        (tmp_path / name).mkdir()
    assert installed_packages([str(tmp_path), str(tmp_path / "missing")]) == {
        "some-package": "1.2", "other": "3",
    }  # fmt: skip
