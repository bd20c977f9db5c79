"""Imported by `site` in each interpreter that `leakline run` starts, before the program: observe it.

Without a plan of ours in the environment it does nothing. It stands in front of a sitecustomize of the user's, which is
imported first, from the same path without us. Our folder and the plan are taken out of the environment again: what the
program starts itself is not observed, but where it is a launcher of ranks, which does nothing else. The names of the
run stay there: what calls `leakline.init` joins it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

PLAN = "_LEAKLINE_OBSERVE"
# Programs that start the ranks, by script or by module.
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun"})
LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.accelerate_cli",
        "accelerate.commands.launch",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)
# Options of an interpreter with a value, which may be joined to them or to others before them, as in -um.
WITH_VALUE = frozenset("cmWX")


def is_launcher(arguments: list[str]) -> bool:
    """Does this command line of an interpreter start a launcher of ranks?"""
    words = iter(arguments[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            return Path(word).name in LAUNCHERS
        option, value = _with_value(word)
        if option and not value:
            value = next(words, "")
        if option in ("m", "c"):
            return option == "m" and value in LAUNCHER_MODULES
    return False


def _with_value(word: str) -> tuple[str, str]:
    """The option in it that takes a value, and what of that is joined to it; empty where there is none."""
    if word.startswith("--"):
        return ("hashes", "") if word == "--check-hash-based-pycs" else ("", "")
    for position, letter in enumerate(word[1:], 2):
        if letter in WITH_VALUE:
            return letter, word[position:]
    return "", ""


def main() -> None:
    """1. the user's own  2. say that this interpreter is here  3. the path as it was  4. observe."""
    plan = json.loads(os.environ.get(PLAN, "null"))
    try:
        _import_the_other(None if plan is None else plan["startup"])
    finally:
        # `site` reports one that fails, and the program goes on.
        if plan is not None:
            _observe(plan)


def _observe(plan: dict[str, Any]) -> None:
    has_us = _has_us()
    if has_us:
        (Path(plan["seen"]) / str(os.getpid())).touch()
    if is_launcher(sys.orig_argv):
        return
    environ = dict(os.environ)
    if not plan["children"]:
        _put_back(plan)
    if has_us:
        from leakline.launcher.observer import begin

        begin(environ)


def _import_the_other(startup: str | None) -> None:
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [p for p in sys.path if p != startup and (not p or os.path.realpath(p) != here)]
    found = PathFinder.find_spec("sitecustomize", sys.path)
    if found is None or found.loader is None:
        return
    module = module_from_spec(found)
    # What `site` sees is theirs.
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


def _has_us() -> bool:
    """The program may run in an interpreter without us, or in one that is too old: then it is watched from outside."""
    try:
        import leakline.launcher.observer  # noqa: F401
    except (ImportError, SyntaxError, TypeError, AttributeError):
        # An older one fails at whatever it does not know first.
        return False
    return True


def _put_back(plan: dict[str, Any]) -> None:
    del os.environ[PLAN]
    if plan["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = plan["python_path"]


if __name__ in ("sitecustomize", "_leakline_sitecustomize"):
    main()
