"""What a run was started from: code version, packages, command line, machine. Read once, at init."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PACKAGES_LIMIT: Final = 400
ARGUMENTS_LIMIT: Final = 100
# `git status` reads every tracked file's metadata; on a slow disk the dirty flag is left out instead.
GIT_TIMEOUT_SECONDS: Final = 1.0
_SECRET = re.compile(r"(?i)(token|passw|secret|api[-_]?key|credential)")


def read_environment() -> dict[str, Any]:
    """commit, dirty, python, packages, command_line, host, cpu_count, platform; absent where unknown."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": installed_packages(sys.path),
        "command_line": command_line(sys.orig_argv),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
    }
    return {**found, **_code_version(Path.cwd())}


def command_line(arguments: Sequence[str]) -> list[str]:
    """The arguments, bounded, with the values of secrets left out."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments[:ARGUMENTS_LIMIT]:
        name, separator, value = argument.partition("=")
        secret = bool(_SECRET.search(name)) and argument.startswith("-")
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif secret and separator and value:
            shown.append(f"{name}=***")
        else:
            shown.append(argument[:300])
        hide_next = secret and not separator
    return shown


def installed_packages(path: Sequence[str]) -> dict[str, str]:
    """Distribution names and versions from the names of their ``.dist-info`` folders.

    importlib.metadata would open a file for each; the folder's name already says both.
    """
    found: dict[str, str] = {}
    for entry in path:
        try:
            names = [item.name for item in Path(entry or ".").iterdir()]
        except OSError:
            continue
        for folder in names:
            name, dash, version = folder.removesuffix(".dist-info").rpartition("-")
            if dash and folder.endswith(".dist-info") and len(found) < PACKAGES_LIMIT:
                # The first folder on the path is the one that is imported.
                found.setdefault(name.lower().replace("_", "-"), version)
    return dict(sorted(found.items()))


def _code_version(folder: Path) -> dict[str, Any]:
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return {}
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit} if changes is None else {"commit": commit, "dirty": bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            # Without optional locks, so that a commit made meanwhile is not disturbed.
            ["git", "--no-optional-locks", *arguments],
            capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
