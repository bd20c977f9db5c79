"""Reads a run's code version, packages, command line and machine, once at init."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..probes.memory.cgroup import read_cgroup

PACKAGES_LIMIT: Final = 400
ARGUMENTS_LIMIT: Final = 100
# Size limit in bytes for the packages and for the arguments, each as JSON: a server refuses headers
# above 64 KiB.
LISTED_BYTES: Final = 24 * 1024
TEXT_LIMIT: Final = 300
# Time limit for `git status`, which reads every tracked file's metadata; after that, the dirty flag
# is left out.
GIT_TIMEOUT_SECONDS: Final = 1.0
_ADDRESS_LIMIT: Final = 300
_REMOTE: Final = re.compile(r"git@[\w.-]+:[\w./~-]+$")
# Names whose values are secrets. `token` is handled separately, because training scripts also use this word for the
# tokens that they count.
NAMES_A_SECRET: Final = re.compile(
    r"(?i)passw|secret(?!ar(?:y|ia|ie))|api[-_]?key|credential|private[-_]?key"
)
_SECRET_WORDS: Final = ("passw", "secret", "api", "credential", "token", "bearer", "://")
# Secrets that are assigned in free text. A number assigned to `token` is not masked, because it is
# usually a token count.
_SECRET_VALUES: Final = re.compile(
    r"""(?ix) ( (?:passw(?:or)?d|secret|api[-_]?key|credential)s? [\w-]* ["']? \s?[=:]\s? ["']? ) [^\s"',;&]{3,}
      | ( tokens? [\w-]* ["']? \s?[=:]\s? ["']? ) (?! [\d.,_]+ (?: [^\w] | $ ) ) [^\s"',;&]{8,}
      | ( \b bearer \s+ ) [\w.~+/=-]{8,}
      | ( :// [^\s/:@]* : ) [^\s/@]+ (?= @ )"""
)


def read_environment() -> dict[str, Any]:
    """Describe the program and the machine, without initializing a device or importing a module.

    The keys are commit, repository, dirty, python, packages, command_line, notebook, host,
    cpu_count, memory_bytes, memory_limit_bytes, platform, gpus, world_size and job; unknown values
    are left out.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": installed_packages(sys.path),
        "command_line": command_line(sys.orig_argv),
        "notebook": os.environ.get("JPY_SESSION_NAME", "")[:TEXT_LIMIT],
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "memory_limit_bytes": read_cgroup().get("cgroup.limit_bytes"),
        "platform": platform.platform(),
        "gpus": _gpus(),
        "world_size": os.environ.get("WORLD_SIZE", "")[:TEXT_LIMIT],
        "job": os.environ.get("SLURM_JOB_ID", "")[:TEXT_LIMIT],
        **_code_version(_code_folders()),
    }
    return {name: value for name, value in found.items() if value or value is False}


def command_line(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, limited in number and size, with secret values masked."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments[:ARGUMENTS_LIMIT]:
        name, separator, value = argument.partition("=")
        secret = argument.startswith("-") and _is_secret_option(name)
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif secret and separator and value:
            shown.append(f"{name}=***")
        else:
            shown.append(masked(argument[:TEXT_LIMIT]))
        hide_next = secret and not separator
    return list(_within(shown))


def _is_secret_option(name: str) -> bool:
    return "token" in name.lower() or NAMES_A_SECRET.search(name) is not None


def _within(texts: Iterable[str]) -> Iterator[str]:
    """Yield the strings in order until the size limit is reached."""
    room = LISTED_BYTES
    for text in texts:
        # JSON separates two strings by two bytes.
        room -= len(json.dumps(text)) + 2
        if room < 0:
            return
        yield text


def masked(text: str) -> str:
    """Return ``text`` with the values of secrets masked. Secrets are found by patterns, so some may be missed."""
    lower = text.lower()
    if not any(word in lower for word in _SECRET_WORDS):
        # Nearly every line contains no such word; applying the pattern would take ten times as
        # long.
        return text
    return _SECRET_VALUES.sub(lambda found: f"{next(filter(None, found.groups()))}***", text)


def installed_packages(path: Sequence[str]) -> dict[str, str]:
    """Return the version of each installed distribution, read from the names of ``.dist-info`` folders.

    importlib.metadata would also open a file for each distribution.
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
                # If several versions of a package are on the path, Python imports the first one.
                found.setdefault(name.lower().replace("_", "-"), version)
    listed = sorted(found.items())
    # Keep only as many packages as fit into the size limit.
    return dict(pair for pair, _ in zip(listed, _within(map(": ".join, listed)), strict=False))


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _gpus() -> list[str]:
    """Return the names of the CUDA devices.

    Returns [] if torch has not initialized CUDA, because a query would initialize it.
    """
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return []
        return [str(torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    except (AttributeError, RuntimeError):
        # torch is only partly imported, or was built without CUDA.
        return []


def _code_folders() -> list[Path]:
    """Return folders that may contain the program's code: the main script's folder, then the working folder."""
    found: list[Path] = []
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    with suppress(OSError, RuntimeError):
        if isinstance(script, str):
            found.append(Path(script).resolve().parent)
    # A notebook has no script, and the working folder may have been deleted.
    with suppress(OSError):
        found.append(Path.cwd())
    return found


def _code_version(folders: Sequence[Path]) -> dict[str, Any]:
    """Return {commit, repository, dirty} for the first folder in a repository, or {} if the commit is unknown."""
    folder = next(filter(_in_repository, folders), None)
    commit = None if folder is None else _git(folder, "rev-parse", "HEAD")
    if folder is None or commit is None:
        return {}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    found: dict[str, Any] = {"commit": commit, "repository": _repository(folder)}
    return found if changes is None else {**found, "dirty": bool(changes)}


def _repository(folder: Path) -> str | None:
    """Return the remote's address without credentials, or None if the remote is missing or is a local folder."""
    address = _git(folder, "config", "--get", "remote.origin.url") or ""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address[:_ADDRESS_LIMIT] if _REMOTE.match(address) else None
    host, slash, path = rest.partition("/")
    if scheme not in ("https", "http", "ssh", "git"):
        return None
    # Drop the user name and the password in front of the @: only git needs them.
    host = host.rpartition("@")[2]
    return f"{scheme}://{host}{slash}{path}"[:_ADDRESS_LIMIT]


def _in_repository(folder: Path) -> bool:
    with suppress(OSError):
        return any((place / ".git").exists() for place in (folder, *folder.parents))
    return False


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            # Take no optional locks, which could make a concurrent commit fail.
            ["git", "-C", str(folder), "--no-optional-locks", *arguments],
            capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
