"""Observes the program in each interpreter that `leakline run` starts. `site` imports this module before the program.

This module shadows the user's sitecustomize, so it imports that module first, from the path without our folder. If the
environment contains no plan, it does nothing else. Our folder, the plan and the library of `--native` are then removed
from the environment, so that processes started by the program are not observed unless the plan includes them. For a
launcher of ranks, all three remain, because the launcher's children are the ranks to observe. The variables that name
the run always remain, so a process that calls `leakline.init` joins the run.
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
# Programs that start ranks: names of scripts, and below names of modules.
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
# Interpreter options that take a value. The value may follow without a space, and options may be joined, as in -um.
WITH_VALUE = frozenset("cmWX")


def is_launcher(arguments: list[str]) -> bool:
    """Return True if an interpreter's command line starts a launcher of ranks."""
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
    """Return (option that takes a value, attached value) for a word of a command line. Both may be empty."""
    if word.startswith("--"):
        return ("hashes", "") if word == "--check-hash-based-pycs" else ("", "")
    for position, letter in enumerate(word[1:], 2):
        if letter in WITH_VALUE:
            return letter, word[position:]
    return "", ""


def main() -> None:
    """Import the user's sitecustomize, report this interpreter, restore the path, and observe the program."""
    plan = json.loads(os.environ.get(PLAN, "null"))
    try:
        _import_the_other(None if plan is None else plan["startup"])
    finally:
        # If the user's module raises, `site` reports the exception and the program still runs, so observe it in this
        # case too.
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
    # After the import, `site` has to find the user's module here.
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


def _has_us() -> bool:
    """Return True if this interpreter can import Leakline. Otherwise the program is watched from outside."""
    try:
        import leakline.launcher.observer  # noqa: F401
    except (ImportError, SyntaxError, TypeError, AttributeError):
        # An old Python version fails at the first syntax or name that it does not know.
        return False
    return True


def _put_back(plan: dict[str, Any]) -> None:
    del os.environ[PLAN]
    if plan["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = plan["python_path"]
    ours, _, others = os.environ.get("LD_PRELOAD", "").partition(":")
    if ours.endswith("/_native_malloc.so"):
        del os.environ["LD_PRELOAD"]
        if others:
            os.environ["LD_PRELOAD"] = others


if __name__ in ("sitecustomize", "_leakline_sitecustomize"):
    main()
