"""The native modules keep their promises in every available interpreter and are refused where they must be; those of
the client also while a program moves, frees and reorders objects, plain and under sanitizers.

`make test-weekly` prints which interpreters were missing; LEAKLINE_TEST_PYTHONS names additional ones.
LEAKLINE_SOAK_SECONDS sets the seconds of each stress program: 10 in `make test-all`, 600 in `make test-weekly`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from tests.native.interpreters import (
    BUILD,
    CLIENT,
    NAMES,
    ROOT,
    Interpreter,
    clean_environment,
    found,
)
from tests.native.soak import FACILITIES

HERE = Path(__file__).parent
WITH_LOCK = [name for name in NAMES if not name.endswith("t")]
WITHOUT_LOCK = [name for name in NAMES if name.endswith("t")]
PACKAGES = {"leakline": CLIENT / "leakline", "leakline_server": ROOT / "server" / "leakline_server"}
OURS = f"python{sys.version_info.major}.{sys.version_info.minor}"
SECONDS = float(os.environ.get("LEAKLINE_SOAK_SECONDS", "10"))
SANITIZE = (
    "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1",
)  # fmt: skip
Compiled = Callable[..., tuple[Interpreter, Path]]
Sanitized = tuple[Interpreter, Path, dict[str, str]]


def _interpreter(name: str) -> Interpreter:
    if name not in found():
        pytest.skip(f"{name} is not on the path nor in LEAKLINE_TEST_PYTHONS")
    return found()[name]


def _run(one: Interpreter, *arguments: object, **setting: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [one.path, *map(str, arguments)],
        env=clean_environment() | setting, capture_output=True, text=True, timeout=SECONDS * 3 + 240,
    )  # fmt: skip


def _passes(one: Interpreter, check: str, *arguments: object, **setting: str) -> None:
    done = _run(one, HERE / check, *arguments, **setting)
    if done.returncode == 77:
        pytest.skip(f"{one.label}: {done.stdout}")
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Return a function that gives an interpreter by name and the folder of its module, or skips the test.

    For the current interpreter the folder is the package, where the module was compiled in place.
    """
    made: dict[tuple[str, str], Path] = {}

    def of(name: str, package: str = "leakline") -> tuple[Interpreter, Path]:
        one, in_place = _interpreter(name), PACKAGES[package]
        if name == OURS and (in_place / f"_native{EXTENSION_SUFFIXES[0]}").exists():
            return one, in_place
        if reason := one.cannot_build():
            pytest.skip(f"{one.label}: {reason}")
        if (name, package) not in made:
            made[name, package] = one.build(tmp_path_factory.mktemp(name), package)
        return one, made[name, package]

    return of


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_LOCK)
def test_counts_and_searches_are_correct(name: str, compiled: Compiled) -> None:
    one, folder = compiled(name)
    _passes(one, "check_native.py", CLIENT, folder)


@pytest.mark.parametrize("name", WITH_LOCK)
def test_a_failed_allocation_only_raises_an_error(name: str, compiled: Compiled) -> None:
    one, folder = compiled(name)
    _passes(one, "starve.py", CLIENT, folder)


@pytest.mark.parametrize("name", WITH_LOCK)
def test_the_numbers_of_a_batch_are_read_as_json_and_sealed(name: str, compiled: Compiled) -> None:
    one, folder = compiled(name, "leakline_server")
    _passes(one, "check_server.py", folder)


@pytest.mark.parametrize("name", WITHOUT_LOCK)
def test_a_free_threaded_interpreter_is_refused_and_counts_in_python(
    name: str, tmp_path: Path
) -> None:
    one = _interpreter(name)
    assert one.is_free_threaded
    built = _run(one, CLIENT / "native" / "build.py", tmp_path)
    assert (built.returncode, built.stdout) == (1, "")
    assert built.stderr == (
        "no native module: it needs the interpreter lock, but this interpreter is free-threaded\n"
    )
    _passes(one, "check_pure.py", CLIENT)


@pytest.mark.parametrize("name", WITH_LOCK)
def test_without_the_module_the_census_counts_the_same_in_python(name: str) -> None:
    _passes(_interpreter(name), "check_pure.py", CLIENT, LEAKLINE_NATIVE="0")


@pytest.mark.parametrize("name", WITHOUT_LOCK)
def test_the_compiler_refuses_a_free_threaded_interpreter(name: str) -> None:
    """Compiling without our build file must not produce a module that reads memory while others write it."""
    include = _run(
        _interpreter(name), "-c", "import sysconfig; print(sysconfig.get_path('include'))"
    ).stdout.strip()
    done = subprocess.run(
        ["cc", "-fsyntax-only", f"-I{include}", str(CLIENT / "native" / "module.c")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "leakline._native requires the GIL" in done.stderr


# -- with a stress program, and under sanitizers


# In `make test` one interpreter is enough in addition to the checks of the others.
@pytest.mark.long
@pytest.mark.timeout(SECONDS * 4 + 300)
@pytest.mark.parametrize("name", WITH_LOCK if "LEAKLINE_SOAK_SECONDS" in os.environ else [OURS])
def test_the_module_survives_a_stress_program(name: str, compiled: Compiled) -> None:
    one, folder = compiled(name)
    _passes(one, "soak.py", CLIENT, folder, SECONDS)


@pytest.fixture(scope="session")
def sanitized(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    one, _ = compiled(OURS)
    libraries = []
    for library in ("libasan.so", "libubsan.so"):
        answer = subprocess.run(
            [shutil.which("gcc") or "cc", f"-print-file-name={library}"],
            capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        if not Path(answer).is_absolute():
            pytest.skip(f"the compiler has no {library}")
        libraries.append(answer)
    folder = tmp_path_factory.mktemp("sanitized")
    # The server's module is in a subfolder.
    code = (
        "import pathlib, runpy, sys; b = runpy.run_path(sys.argv[1]); folder = pathlib.Path(sys.argv[2]); "
        "b['build'](folder, extra=sys.argv[3:]); b['build'](folder / 'server', b['SERVER'], extra=sys.argv[3:])"
    )
    subprocess.run(
        [one.path, "-c", code, str(BUILD), str(folder), *SANITIZE],
        check=True, env=clean_environment(),
    )  # fmt: skip
    return one, folder, {
        "LD_PRELOAD": " ".join(libraries),
        # The interpreter itself keeps memory until its end.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(SECONDS * 4 + 300)
def test_no_freed_object_is_read_and_no_undefined_behaviour_occurs(sanitized: Sanitized) -> None:
    one, folder, setting = sanitized
    # Access to freed memory is detected only if every object is a separate allocation.
    _passes(one, "soak.py", CLIENT, folder, SECONDS, *FACILITIES, PYTHONMALLOC="malloc", **setting)


@pytest.mark.long
def test_the_checks_also_pass_under_sanitizers(sanitized: Sanitized) -> None:
    one, folder, setting = sanitized
    _passes(one, "check_native.py", CLIENT, folder, PYTHONMALLOC="malloc", **setting)
    _passes(one, "check_server.py", folder / "server", PYTHONMALLOC="malloc", **setting)
