"""Interpreters in which the native module is tested, and the module compiled for each of them."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "agent_client" / "native" / "build.py"
CLIENT = ROOT / "agent_client"
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3.13t", "python3.14t")
# Paths of additional interpreters, or of folders with some, separated as in PATH.
SETTING = "LEAKLINE_TEST_PYTHONS"

_ABOUT = """
import json, sys, sysconfig
print(json.dumps(["%d.%d" % sys.version_info[:2], "%d.%d.%d" % sys.version_info[:3], sys.implementation.name,
                  bool(sysconfig.get_config_var("Py_GIL_DISABLED")), sys.executable]))
"""


@dataclass(frozen=True)
class Interpreter:
    name: str
    version: str
    path: str
    is_free_threaded: bool

    @property
    def label(self) -> str:
        return f"{self.version}{'t' * self.is_free_threaded}"

    def cannot_build(self) -> str | None:
        """Return in one line why the module cannot be compiled for it, or None."""
        done = subprocess.run([self.path, str(BUILD), "--possible"], capture_output=True, text=True)
        return done.stderr.strip() or None if done.returncode else None

    def build(
        self, folder: Path, package: str = "leakline", *, compiler: str | None = None
    ) -> Path:
        environment = clean_environment() | ({"CC": compiler} if compiler else {})
        subprocess.run(
            [self.path, str(BUILD), str(folder), package],
            env=environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return folder


def clean_environment() -> dict[str, str]:
    """Return an environment in which the other interpreter does not load this one's modules."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "LEAKLINE_NATIVE", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


@functools.cache
def found() -> Mapping[str, Interpreter]:
    """Return the interpreters that start, by name; the first one of each name."""
    by_name: dict[str, Interpreter] = {}
    for candidate in _candidates():
        one = _ask(candidate)
        if one is not None and one.name in NAMES:
            by_name.setdefault(one.name, one)
    return by_name


def _candidates() -> Iterator[str]:
    # The interpreter that runs these tests is always included.
    yield sys.executable
    for place in os.environ.get(SETTING, "").split(os.pathsep):
        if place and Path(place).is_dir():
            yield from (str(path) for name in NAMES for path in sorted(Path(place).glob(name)))
        elif place:
            yield place
    for name in NAMES:
        if path := shutil.which(name):
            yield path


def _ask(path: str) -> Interpreter | None:
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ABOUT],
            env=clean_environment(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        name, version, kind, free, executable = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        # A name on the path that starts nothing, such as a shim of pyenv.
        return None
    if kind != "cpython":
        return None
    return Interpreter(f"python{name}{'t' * free}", version, executable, free)
