"""What people may type is one list, and nothing else is public."""

from __future__ import annotations

import json
import subprocess
import sys

import leakline

PUBLIC = {"init", "current", "Run", "LeaklineError", "BadArgument", "__version__"}

RUN_CALLS = {
    "generation", "episode", "epoch", "step", "phase", "snapshot", "expect", "track", "gauge", "cleanup",
    "register_cleanup", "mark", "note", "band", "budget", "fix", "report", "finish", "on",
    "find_holders", "census",
}  # fmt: skip


def test_the_public_names_are_the_list() -> None:
    assert set(leakline.__all__) == PUBLIC
    assert all(hasattr(leakline, name) for name in PUBLIC)


def test_a_run_has_every_call_of_the_contract_and_each_is_explained() -> None:
    for call in RUN_CALLS:
        assert getattr(leakline.Run, call).__doc__, f"Run.{call} has no docstring"


def test_the_run_that_does_nothing_has_the_same_calls() -> None:
    run = leakline.current()
    assert {name for name in RUN_CALLS if not hasattr(run, name)} == set()


def test_importing_leakline_loads_neither_server_nor_torch_nor_numpy_and_starts_no_thread() -> None:
    code = (
        "import sys, threading, json; before = set(sys.modules); import leakline; "
        "print(json.dumps([sorted(set(sys.modules) - before), threading.active_count()]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, threads = json.loads(out.stdout)
    heavy = {
        "torch",
        "numpy",
        "psutil",
        "pynvml",
        "fastapi",
        "sqlalchemy",
        "leakline_server",
        "http.client",
        "ssl",
    }
    assert heavy.isdisjoint(modules)
    assert threads == 1
