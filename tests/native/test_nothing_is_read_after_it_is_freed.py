"""All of the native module beside a program that moves, frees and reorders objects: plain, and under sanitizers.

Seconds of each by LEAKLINE_SOAK_SECONDS: 10 in `make test`, 600 in `make test-native`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.native.conftest import Compiled
from tests.native.interpreters import BUILD, CLIENT, NAMES, Interpreter, clean_environment
from tests.native.soak import FACILITIES

pytestmark = pytest.mark.long

SOAK = Path(__file__).parent / "soak.py"
CHECK = Path(__file__).parent / "check_native.py"
CHECKS_OF_SERVER = [Path(__file__).parent / f"check_{name}.py" for name in ("columns", "tables")]
SECONDS = float(os.environ.get("LEAKLINE_SOAK_SECONDS", "10"))
WITH_LOCK = [name for name in NAMES if not name.endswith("t")]
OURS = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Freed memory is seen where every object is an allocation of its own; the scan of arenas needs Python's own allocator.
UNDER_PYMALLOC = [name for name in FACILITIES if name.startswith("arenas")]
UNDER_MALLOC = [name for name in FACILITIES if name not in UNDER_PYMALLOC]
SANITIZE = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]


def _soak(one: Interpreter, folder: Path, *facilities: str, **setting: str) -> None:
    _run(one, SOAK, CLIENT, folder, SECONDS, *facilities, **setting)


def _run(one: Interpreter, *arguments: object, **setting: str) -> None:
    done = subprocess.run(
        [one.path, *map(str, arguments)],
        env=clean_environment() | setting, capture_output=True, text=True, timeout=SECONDS * 3 + 240,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}"


# In `make test` one interpreter is enough beside the checks of the others.
@pytest.mark.timeout(SECONDS * 4 + 300)
@pytest.mark.parametrize("name", WITH_LOCK if "LEAKLINE_SOAK_SECONDS" in os.environ else [OURS])
def test_a_program_that_does_its_worst_is_survived(name: str, compiled: Compiled) -> None:
    _soak(*compiled(name))


@pytest.fixture(scope="session")
def sanitized(
    compiled: Compiled, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Interpreter, Path, dict[str, str]]:
    one, _ = compiled(OURS)
    libraries = []
    for library in ("libasan.so", "libubsan.so"):
        answer = subprocess.run(
            [shutil.which("gcc") or "cc", f"-print-file-name={library}"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        if not Path(answer).is_absolute():
            pytest.skip(f"the compiler has no {library}")
        libraries.append(answer)
    folder = tmp_path_factory.mktemp("sanitized")
    # The one of the server lies below it.
    code = (
        "import pathlib, runpy, sys; b = runpy.run_path(sys.argv[1]); folder = pathlib.Path(sys.argv[2]); "
        "b['build'](folder, extra=sys.argv[3:]); b['build'](folder / 'server', b['SERVER'], extra=sys.argv[3:])"
    )
    subprocess.run(
        [one.path, "-c", code, str(BUILD), str(folder), *SANITIZE],
        check=True,
        env=clean_environment(),
    )
    return one, folder, {
        "LD_PRELOAD": " ".join(libraries),
        # The interpreter itself keeps memory to its end.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip


@pytest.mark.timeout(SECONDS * 4 + 300)
def test_no_freed_object_is_read_and_nothing_undefined_is_done(
    sanitized: tuple[Interpreter, Path, dict[str, str]],
) -> None:
    one, folder, setting = sanitized
    _soak(one, folder, *UNDER_MALLOC, PYTHONMALLOC="malloc", **setting)


def test_the_checks_of_every_interpreter_hold_under_sanitizers_too(
    sanitized: tuple[Interpreter, Path, dict[str, str]],
) -> None:
    one, folder, setting = sanitized
    _run(
        one,
        CHECK,
        CLIENT,
        folder,
        "the_arenas_hold_what_was_put_there",
        PYTHONMALLOC="malloc",
        **setting,
    )


@pytest.mark.timeout(SECONDS * 4 + 300)
def test_the_scan_of_arenas_reads_only_what_is_there(
    sanitized: tuple[Interpreter, Path, dict[str, str]],
) -> None:
    one, folder, setting = sanitized
    _soak(one, folder, *UNDER_PYMALLOC, PYTHONMALLOC="pymalloc", **setting)


@pytest.mark.parametrize("check", CHECKS_OF_SERVER, ids=lambda path: path.stem)
def test_reading_and_sealing_the_numbers_of_a_batch_stays_within_them(
    check: Path, sanitized: tuple[Interpreter, Path, dict[str, str]]
) -> None:
    one, folder, setting = sanitized
    _run(one, check, folder / "server", PYTHONMALLOC="malloc", **setting)
