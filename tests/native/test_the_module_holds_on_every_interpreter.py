"""The native module, compiled for each interpreter at hand, keeps its promises there, and is refused where it must be.

`make test-native` prints which interpreters were missing; LEAKLINE_TEST_PYTHONS names more of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.native.conftest import Compiled
from tests.native.interpreters import CLIENT, NAMES, Interpreter, clean_environment, found

HERE = Path(__file__).parent
WITH_LOCK = [name for name in NAMES if not name.endswith("t")]
WITHOUT_LOCK = [name for name in NAMES if name.endswith("t")]
SECONDS = 240


def _interpreter(name: str) -> Interpreter:
    if name not in found():
        pytest.skip(f"{name} is not on the path nor in LEAKLINE_TEST_PYTHONS")
    return found()[name]


def _run(one: Interpreter, *arguments: object, **setting: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [one.path, *map(str, arguments)],
        env=clean_environment() | setting, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


@pytest.mark.parametrize("name", WITH_LOCK)
def test_what_it_counts_and_finds_is_what_there_is(name: str, compiled: Compiled) -> None:
    one, folder = compiled(name)
    done = _run(one, HERE / "check_native.py", CLIENT, folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WITH_LOCK)
def test_an_allocation_that_is_refused_is_an_error_and_nothing_else(
    name: str, compiled: Compiled
) -> None:
    one, folder = compiled(name)
    done = _run(one, HERE / "starve.py", CLIENT, folder)
    if done.returncode == 77:
        pytest.skip(f"{one.label} has no _testcapi, which refuses allocations")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WITH_LOCK)
def test_the_numbers_of_a_batch_are_read_as_json_reads_them_and_sealed(
    name: str, compiled: Compiled, tmp_path: Path
) -> None:
    one, _ = compiled(name)
    folder = one.build(tmp_path, "leakline_server")
    for check in ("check_columns.py", "check_tables.py"):
        done = _run(one, HERE / check, folder)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WITHOUT_LOCK)
def test_an_interpreter_without_a_lock_is_refused_and_counts_in_python(
    name: str, tmp_path: Path
) -> None:
    one = _interpreter(name)
    assert one.is_free_threaded
    built = _run(one, CLIENT / "native" / "build.py", tmp_path)
    assert (built.returncode, built.stdout) == (1, "")
    assert built.stderr == (
        "no native module: it needs the interpreter lock, and this interpreter is free-threaded\n"
    )
    done = _run(one, HERE / "check_pure.py", CLIENT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WITH_LOCK)
def test_without_the_module_the_census_counts_the_same_in_python(name: str) -> None:
    done = _run(_interpreter(name), HERE / "check_pure.py", CLIENT, LEAKLINE_NATIVE="0")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WITHOUT_LOCK)
def test_the_compiler_refuses_it_too_where_there_is_no_lock(name: str) -> None:
    """Who compiles without our build file must not get a module that reads what others write."""
    include = _run(
        _interpreter(name), "-c", "import sysconfig; print(sysconfig.get_path('include'))"
    ).stdout.strip()
    done = subprocess.run(
        ["cc", "-fsyntax-only", f"-I{include}", str(CLIENT / "native" / "module.c")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "leakline._native needs the interpreter lock" in done.stderr
