"""Compile `leakline._native`, or `leakline_server._native`, for the interpreter that runs this file.

    python agent_client/native/build.py FOLDER                   # creates FOLDER/_native<EXT_SUFFIX>
    python agent_client/native/build.py FOLDER leakline_malloc   # creates FOLDER/_native_malloc.so
    python agent_client/native/build.py FOLDER leakline_server   # compiles the server's module
    python agent_client/native/build.py --possible               # checks whether the module can be built

This script uses only the standard library, so any interpreter can run it. The package's build hook and the tests call
`build`. The modules are optional: if a module cannot be built, `NotBuilt` gives the reason in one line, and the package
works in pure Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SETTING = "LEAKLINE_BUILD_NATIVE"
ROOT = Path(__file__).resolve().parents[2]


class Module(NamedTuple):
    """A module to compile: `_native` of the package in the folder ``package``, or a library to preload."""

    package: Path
    sources: Path
    headers: tuple[str, ...] = ("Python.h",)
    # The name under which the interpreter looks for a module.
    file_name: str = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"

    @property
    def name(self) -> str:
        return f"{self.package.name}._native"


CLIENT = Module(
    ROOT / "agent_client" / "leakline",
    ROOT / "agent_client" / "native",
    ("Python.h", "internal/pycore_gc.h"),
)
# It includes no header of Python, but a wheel contains either all native modules or none.
MALLOC = Module(CLIENT.package, CLIENT.sources / "preload", CLIENT.headers, "_native_malloc.so")
SERVER = Module(ROOT / "server" / "leakline_server", ROOT / "server" / "native")
MODULES = {"leakline": CLIENT, "leakline_malloc": MALLOC, "leakline_server": SERVER}
# The versions whose internal headers the sources were written and tested against.
OLDEST, NEWEST = (3, 11), (3, 14)
# Warnings are not errors: a newer compiler must not turn an installation away.
FLAGS = (
    *("-std=gnu11", "-O2", "-g0", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"),
    # The flags with which the interpreter itself is compiled.
    *("-fwrapv", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"),
)
SECONDS = 300.0


class NotBuilt(Exception):
    """Raised with the reason, in one line, why a native module cannot be built."""


def wanted() -> bool | None:
    """Read LEAKLINE_BUILD_NATIVE: False skips the build, True makes a failure an error, None builds if possible.

    Raises `ValueError` if the value is not 0, 1 or empty.
    """
    value = os.environ.get(SETTING, "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"{SETTING} is {value!r}; set it to 0 (never build) or 1 (fail if the build fails), or leave it empty"
        )
    return None if value == "" else value == "1"


def compiler() -> list[str]:
    """Return the C compiler's command: $CC, or otherwise the first installed one of the usual compilers.

    The compiler that built this interpreter is tried first. Raises `NotBuilt` if no compiler is installed.
    """
    if chosen := shlex.split(os.environ.get("CC", "")):
        if shutil.which(chosen[0]):
            return chosen
        raise NotBuilt(f"CC is set to {chosen[0]}, which was not found; install it or unset CC")
    for candidate in (str(sysconfig.get_config_var("CC") or ""), "cc", "gcc", "clang"):
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            return command
    raise NotBuilt("no C compiler was found; install gcc or clang")


def check(module: Module = CLIENT) -> None:
    """Raise `NotBuilt` if the module cannot be built for this interpreter or on this machine."""
    version = sys.version_info[:2]
    if sys.implementation.name != "cpython":
        raise NotBuilt(f"it needs CPython, but this interpreter is {sys.implementation.name}")
    if not OLDEST <= version <= NEWEST:
        raise NotBuilt(f"it needs CPython 3.11 to 3.14, but this is {version[0]}.{version[1]}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuilt("it needs the interpreter lock, but this interpreter is free-threaded")
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        raise NotBuilt("it can be built only on 64-bit Linux")
    headers = Path(sysconfig.get_path("include"))
    for name in module.headers:
        if not (headers / name).is_file():
            raise NotBuilt(f"Python's headers are not installed: {headers / name} is missing")
    compiler()


def build(folder: Path, module: Module = CLIENT, *, extra: Sequence[str] = ()) -> Path:
    """Compile the module into the folder, load it once in a fresh interpreter, and return its path.

    `extra` contains additional arguments for the compiler. An older module of the same name is replaced in one
    step, or removed if the build fails. Raises `NotBuilt`.
    """
    target = folder / module.file_name
    try:
        check(module)
        folder.mkdir(parents=True, exist_ok=True)
        # Build in the target folder, so that the replacement is atomic and a running process keeps the old module.
        with tempfile.TemporaryDirectory(prefix="_native-", dir=folder) as made:
            fresh = Path(made) / target.name
            _compile(module, fresh, extra)
            if not extra:
                _load_once(module, fresh)
            fresh.replace(target)
    except NotBuilt:
        target.unlink(missing_ok=True)
        raise
    return target


def _compile(module: Module, target: Path, extra: Sequence[str]) -> None:
    sources = sorted(path.name for path in module.sources.glob("*.c"))
    if not sources:
        raise NotBuilt(f"{module.sources} contains no C files")
    # Both paths may name the same folder.
    headers = dict.fromkeys(sysconfig.get_path(kind) for kind in ("include", "platinclude"))
    command = [
        *compiler(), *FLAGS, *(f"-I{folder}" for folder in headers), *extra,
        *sources, "-shared", "-o", str(target), *shlex.split(os.environ.get("LDFLAGS", "")),
        *(("-ldl",) if module == MALLOC else ()),
    ]  # fmt: skip
    try:
        # Relative file names keep this machine's folder names out of the compiled module.
        done = subprocess.run(
            command,
            cwd=module.sources,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"the C compiler could not run: {error}") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        what = next(
            (line for line in lines if "error" in line),
            lines[-1] if lines else "the compiler printed no reason",
        )
        raise NotBuilt(f"compilation failed: {what}")


def _load_once(module: Module, path: Path) -> None:
    """Load the module in a new interpreter, so that an undefined symbol fails the build and not a training run."""
    code = (
        "import importlib.util as u, sys; "
        "s = u.spec_from_file_location(*sys.argv[1:]); u.module_from_spec(s)"
    )
    if module == MALLOC:
        code = "import ctypes, sys; ctypes.CDLL(sys.argv[2]).leakline_malloc_arm(1)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, module.name, str(path)],
        capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.splitlines() or [
            f"the interpreter exited with status {done.returncode}"
        ]
        raise NotBuilt(f"it was compiled but cannot be loaded: {lines[-1]}")


def main(arguments: Sequence[str]) -> int:
    folder, *names = arguments or ("--help",)
    name = names[0] if names else "leakline"
    if len(names) > 1 or name not in MODULES or folder in ("-h", "--help"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        if folder == "--possible":
            check(MODULES[name])
        else:
            sys.stdout.write(f"{build(Path(folder).resolve(), MODULES[name])}\n")
    except NotBuilt as reason:
        sys.stderr.write(f"no native module: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
