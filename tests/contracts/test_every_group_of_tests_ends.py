"""`.ci/test` fails when a group of tests failed, was killed, never began, or when nothing was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "test"
GROUPS = 9
ALL_WELL = "exit 0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the groups are run: one folder of tests, with nothing that must be alone."""
    (tmp_path / "tests" / "server").mkdir(parents=True)
    return tmp_path


def _tested(
    folder: Path, what: str, *arguments: str, length: str = "short"
) -> subprocess.CompletedProcess[str]:
    """With a Python that does ``what`` for each group; it tells its arguments to began.log."""
    python = folder / "python"
    python.write_text(f'#!/bin/bash\necho "$*" >> began.log\n{what}\n')
    python.chmod(0o755)
    return subprocess.run(
        [SCRIPT, python, length, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_when_every_group_passed_it_passes(folder: Path) -> None:
    ended = _tested(folder, ALL_WELL)
    assert ended.returncode == 0, ended.stderr
    assert len((folder / "began.log").read_text().splitlines()) == GROUPS


def test_a_group_that_failed_is_named_and_the_others_run(folder: Path) -> None:
    ended = _tested(folder, "case $* in *tests/client*) exit 1;; esac")
    assert ended.returncode == 1
    assert "make test: failed:\ntests/client\n" in ended.stderr
    assert len((folder / "began.log").read_text().splitlines()) == GROUPS


def test_only_marks_make_a_test_run_alone(folder: Path) -> None:
    marked = "pytestmark = [\n    pytest.mark.alone,\n]\n"
    (folder / "tests" / "server" / "test_marked.py").write_text(marked)
    (folder / "tests" / "server" / "test_telling.py").write_text('MARKS = "pytest.mark.alone"\n')
    assert _tested(folder, ALL_WELL).returncode == 0
    first = (folder / "began.log").read_text().splitlines()[0]
    assert first.endswith("tests/server/test_marked.py")


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_a_group_that_was_killed_with_its_shell_is_no_success(folder: Path, signal: str) -> None:
    ended = _tested(folder, f"case $* in *tests/client*) kill -{signal} $PPID;; esac")
    assert ended.returncode == 1
    assert f"of {GROUPS} groups of tests ended" in ended.stderr


def test_without_xargs_it_is_no_success(folder: Path) -> None:
    (folder / "bin").mkdir()
    for name in ("bash", "mktemp", "grep", "paste", "rm", "nproc", "wc", "cat", "flock"):
        (folder / "bin" / name).symlink_to(_where(name))
    python = folder / "python"
    python.write_text("#!/bin/bash\nexit 0\n")
    python.chmod(0o755)
    ended = subprocess.run(
        [SCRIPT, python, "short"], cwd=folder, env={"PATH": str(folder / "bin")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert f"0 of {GROUPS} groups of tests ended" in ended.stderr


def test_a_choice_may_leave_groups_out_but_not_all_of_them(folder: Path) -> None:
    some = _tested(folder, "case $* in *tests/client*) exit 0;; *) exit 5;; esac", "-k", "spool")
    assert some.returncode == 0, some.stderr
    none = _tested(folder, "exit 5", "-k", "misspelt")
    assert none.returncode == 1
    assert "no test is called for by TEST_ARGS: -k misspelt" in none.stderr


def test_without_a_choice_an_empty_group_is_a_failure(folder: Path) -> None:
    ended = _tested(folder, "case $* in *tests/probes*) exit 5;; esac")
    assert ended.returncode == 1
    assert "failed:\ntests/probes\n" in ended.stderr


def test_what_is_alone_may_all_be_long(folder: Path) -> None:
    (folder / "tests" / "server" / "test_marked.py").write_text("pytestmark = pytest.mark.alone\n")
    ended = _tested(folder, "case $* in *test_marked.py*) exit 5;; esac")
    assert ended.returncode == 0, ended.stderr


def test_the_last_lines_name_each_test_that_failed(folder: Path) -> None:
    lines = [
        "FAILED tests/client/test_a.py::test_one - assert 1 == 2",
        "ERROR tests/client/test_b.py",
    ]
    said = "; ".join(f"echo '{line}'" for line in lines)
    ended = _tested(folder, f"case $* in *tests/client*) {said}; exit 1;; esac")
    assert ended.stderr.splitlines()[-2:] == lines


def test_long_ones_are_run_by_themselves_and_no_group_need_have_some(folder: Path) -> None:
    assert _tested(folder, ALL_WELL).returncode == 0
    assert all(" and not long " in line for line in (folder / "began.log").read_text().splitlines())
    (folder / "began.log").unlink()
    some = _tested(folder, "case $* in *tests/browser*) exit 0;; *) exit 5;; esac", length="long")
    assert some.returncode == 0, some.stderr
    assert all(" and long " in line for line in (folder / "began.log").read_text().splitlines())
    failed = _tested(folder, "case $* in *tests/browser*) exit 1;; *) exit 5;; esac", length="long")
    assert "make test-long: failed:\ntests/browser" in failed.stderr
    none = _tested(folder, "exit 5", length="long")
    assert none.returncode == 1
    assert _tested(folder, ALL_WELL, length="quick").returncode == 2


def _where(name: str) -> str:
    return subprocess.check_output(["which", name], text=True).strip()
