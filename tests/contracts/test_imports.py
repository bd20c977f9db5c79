"""Rules for imports between packages, the size of folders, the cost of `import leakline`, and the public names."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

import leakline

ROOT = Path(__file__).resolve().parents[2]

# -- layers between packages, checked for every import statement -------------------------------------------

BASICS = ("leakline.errors", "leakline.snapshot", "leakline.text_format")

# Package or module (longest prefix wins) -> what it may import besides itself and the standard library. Imports in `if
# TYPE_CHECKING:` are free within a distribution, since they never run.
LAYERS: dict[str, tuple[str, ...]] = {
    "leakline": ("leakline.errors", "leakline.run"),
    "leakline.__main__": ("leakline.cli",),
    # The lowest layer of the client.
    "leakline.errors": (),
    "leakline.snapshot": (),
    "leakline.text_format": ("leakline.errors",),
    "leakline.settings": BASICS,
    "leakline.runtime": (),
    "leakline.console": BASICS,
    # Pure: no clock, no I/O, no dependency.
    "leakline.analysis": ("leakline.snapshot", "leakline.text_format"),
    "leakline.analysis.statistics": ("leakline.analysis.timeline",),
    # The path of a number from its source to the server.
    "leakline.probes": ("leakline.snapshot", "torch", "numpy", "psutil"),
    "leakline.sampling": (*BASICS, "leakline.runtime", "leakline.probes", "torch", "numpy"),
    "leakline.transport": (*BASICS, "leakline.settings", "leakline.runtime", "leakline.console"),
    "leakline.transport.orphan_recovery": (
        *BASICS, "leakline.runtime", "leakline.transport", "leakline.probes.memory.cgroup",
    ),
    "leakline.actions": (*BASICS, "leakline.runtime", "leakline.sampling"),
    # The run in the training process: wires everything above.
    "leakline.core": (
        *BASICS, "leakline.settings", "leakline.runtime", "leakline.console", "leakline.probes", "leakline.sampling",
        "leakline.transport", "leakline.actions",
    ),
    "leakline.run": (
        *BASICS, "leakline.settings", "leakline.runtime", "leakline.console", "leakline.core", "leakline.actions",
    ),
    # Packages that use a run, or the files of a run.
    "leakline.integrations": (
        "leakline.run", "leakline.core", "leakline.settings", "leakline.errors", "leakline.runtime",
        "lightning", "pytorch_lightning", "transformers", "stable_baselines3", "keras", "gymnasium",
    ),
    "leakline.report": (
        *BASICS, "leakline.analysis", "leakline.transport", "leakline.console", "leakline.core.phase_accounting",
    ),
    "leakline.importing": (*BASICS, "leakline.analysis", "leakline.transport", "leakline.core.process_tree"),
    "leakline.launcher": (
        *BASICS, "leakline.settings", "leakline.runtime", "leakline.console", "leakline.analysis", "leakline.probes",
        "leakline.sampling", "leakline.transport", "leakline.core", "leakline.run",
    ),
    "leakline.testing": ("leakline",),
    "leakline.pytest_plugin": ("leakline.testing", "leakline.errors", "leakline.text_format", "pytest"),
    "leakline.cli.drill_training": ("leakline", "torch"),
    "leakline.cli": ("leakline",),
    # The lowest layer of the server.
    "leakline_server": (),
    "leakline_server.limits": (),
    "leakline_server.errors": (),
    "leakline_server.paths": (),
    "leakline_server.worker_thread": (),
    "leakline_server.logs": ("starlette",),
    "leakline_server.text_cleaning": ("leakline.core.environment", "leakline_server.limits"),
    # The only package that speaks SQL.
    "leakline_server.store": (
        "sqlalchemy", "alembic", "msgspec", "numpy", "zstandard", "leakline.snapshot", "leakline.analysis",
        "leakline.transport.spool_format", "leakline.transport.oom_inference", "leakline_server.limits",
        "leakline_server.paths",
    ),
    "leakline_server.charts": ("leakline.analysis", "leakline.text_format", "leakline_server.store", "msgspec"),
    "leakline_server.live_updates": ("leakline_server.run_requests", "leakline_server.store"),
    "leakline_server.run_export": ("leakline_server.store", "msgspec", "numpy", "pyarrow"),
    "leakline_server.run_requests": (
        "leakline.analysis", "leakline_server.errors", "leakline_server.limits", "leakline_server.store",
    ),
    "leakline_server.security": (
        "argon2", "leakline.snapshot", "leakline_server.errors", "leakline_server.limits", "leakline_server.store",
    ),
    "leakline_server.ingest": (
        "msgspec", "numpy", "zstandard", "google", "opentelemetry", "leakline.snapshot", "leakline.core.environment",
        "leakline_server.errors", "leakline_server.limits", "leakline_server.store", "leakline_server.text_cleaning",
    ),
    "leakline_server.ingest.otlp_metrics": (
        "msgspec", "google", "opentelemetry", "leakline.snapshot", "leakline.core.environment",
        "leakline_server.errors", "leakline_server.limits", "leakline_server.text_cleaning",
    ),
    "leakline_server.ingest.writer": (
        "sqlalchemy", "leakline.snapshot", "leakline_server.errors", "leakline_server.limits", "leakline_server.store",
        "leakline_server.ingest", "leakline_server.worker_thread",
    ),
    "leakline_server.alerts": (
        "standardwebhooks", "apprise", "requests", "pydantic", *BASICS, "leakline.analysis",
        "leakline.transport.http_connection", "leakline.transport.oom_inference", "leakline_server.store",
        "leakline_server.limits",
    ),
    "leakline_server.config": (
        *BASICS, "leakline.analysis", "leakline.settings", "leakline_server.alerts", "leakline_server.limits",
        "leakline_server.logs", "leakline_server.security", "leakline_server.store",
    ),
    "leakline_server.admin": (
        *BASICS, "leakline_server.alerts", "leakline_server.config", "leakline_server.paths",
        "leakline_server.run_export", "leakline_server.store", "sqlalchemy",
    ),
    "leakline_server.workers": (
        "leakline", "leakline_server.alerts", "leakline_server.config", "leakline_server.live_updates",
        "leakline_server.run_requests", "leakline_server.store", "leakline_server.worker_thread", "sqlalchemy",
    ),
    "leakline_server.web": (
        "fastapi", "starlette", "pydantic", "jinja2", "markupsafe", "markdown_it", "prometheus_client", "msgspec",
        "zstandard", "leakline", "leakline_server",
    ),
    # All pages depend on it, so it depends on none of them.
    "leakline_server.web.rendering": (
        "fastapi", "starlette", "jinja2", "markupsafe", "leakline", "leakline_server.charts", "leakline_server.paths",
        "leakline_server.web.auth.authenticator", "leakline_server.web.search_query",
    ),
    "leakline_server.client_connections": (
        "uvicorn", "starlette", "leakline_server.errors", "leakline_server.limits", "leakline_server.web",
    ),
    "leakline_server.app": ("fastapi", "starlette", "leakline_server"),
    "leakline_server.serve": ("fastapi", "uvicorn", "leakline", "leakline_server"),
}  # fmt: skip

# The same for imports inside functions, which run on first use.
LAZILY: dict[str, tuple[str, ...]] = {
    "leakline.settings": ("leakline.transport.http_connection",),
    "leakline": ("leakline.integrations.automatic",),
    "leakline.console": ("leakline.analysis",),
    "leakline.transport": ("leakline.analysis",),
    "leakline.actions": ("leakline.analysis",),
    "leakline.core": ("leakline.analysis", "leakline.report"),
    "leakline.run": ("leakline.report",),
    "leakline.launcher": ("leakline.report", "leakline.integrations.automatic"),
    "leakline.cli": ("leakline_server", "uvicorn", "standardwebhooks"),
}

# Package -> packages that it must never import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "leakline": ("fastapi", "sqlalchemy", "jinja2", "msgspec"),
    "leakline.cli.drill_training": (
        "leakline.probes",
        "leakline.run",
        "leakline.sampling",
        "leakline.cli",
    ),
    "leakline_server.charts": ("leakline_server.store.engine",),
    "leakline_server.web": ("sqlalchemy", "leakline_server.workers"),
    "leakline_server.workers": ("leakline_server.web",),
}

# Layered packages, the lowest first: none imports a later one at import time.
ORDER = (
    "leakline.runtime", "leakline.console", "leakline.analysis", "leakline.probes", "leakline.sampling",
    "leakline.transport", "leakline.actions", "leakline.core", "leakline.report", "leakline.importing",
    "leakline.launcher", "leakline.integrations", "leakline.cli", "leakline_server.store", "leakline_server.charts",
    "leakline_server.security", "leakline_server.ingest", "leakline_server.alerts", "leakline_server.admin",
    "leakline_server.workers", "leakline_server.web",
)  # fmt: skip

When = Literal["loaded", "lazily", "typing"]


class Import(NamedTuple):
    name: str
    when: When
    where: str


def _modules() -> Iterator[tuple[str, Path]]:
    for base in ("agent_client/leakline", "server/leakline_server"):
        folder = (ROOT / base).parent
        for path in sorted((ROOT / base).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(p for p in parts if p != "__init__"), path


@cache
def _imports(name: str) -> list[Import]:
    """Return the imports of a module that are not in the standard library."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return list(_of_nodes(ast.parse(path.read_text()), package, path, "loaded"))


def _of_nodes(tree: ast.AST, package: list[str], path: Path, when: When) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        inner = when
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and when == "loaded":
            inner = "lazily"
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            inner = "typing"
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            imported = [f"{module}.{alias.name}" for alias in node.names]
        for each in imported:
            if each.split(".")[0] not in sys.stdlib_module_names:
                line = getattr(node, "lineno", 0)
                where = f"{path.relative_to(ROOT)}:{line} imports {each}"
                yield Import(each, inner, where)
        yield from _of_nodes(node, package, path, inner)


def _within(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _longest(name: str, rows: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the matching row of a table for a module. The row of a distribution applies only to its `__init__`."""
    rooms = (row for row in rows if (name == row if "." not in row else _within(name, row)))
    return max(rooms, key=len, default=None)


MODULES = dict(_modules())


def test_the_tables_contain_only_existing_packages() -> None:
    for row in {*LAYERS, *LAZILY, *FORBIDDEN, *ORDER}:
        assert any(_within(name, row) for name in MODULES), f"no such package: {row}"


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_its_layer_allows(name: str) -> None:
    row = _longest(name, LAYERS)
    assert row is not None, f"{name} is in no layer"
    lazily = LAZILY.get(_longest(name, LAZILY) or "", ())
    forbidden = [(above, names) for above, names in FORBIDDEN.items() if _within(name, above)]
    for each in _imports(name):
        is_itself = _within(each.name, row) if "." in row else False
        allowed = LAYERS[row] + (() if each.when == "loaded" else lazily)
        is_typing = each.when == "typing" and each.name.split(".")[0] == name.split(".")[0]
        if not is_typing:
            assert is_itself or _within(each.name, *allowed), f"{each.where}; {row} may not"
        for above, names in forbidden:
            assert not _within(each.name, *names), f"{each.where}, forbidden in {above}"


def test_no_package_imports_a_later_layer_at_import_time() -> None:
    def turn(name: str) -> int | None:
        return next((i for i, package in enumerate(ORDER) if _within(name, package)), None)

    for name in MODULES:
        mine = turn(name)
        for each in _imports(name) if mine is not None else ():
            theirs = turn(each.name) if each.when == "loaded" else None
            assert theirs is None or theirs <= mine, each.where


def test_the_stored_series_are_used_only_through_their_interface() -> None:
    package = "leakline_server.store.series"
    inner = [name for name in MODULES if _within(name, package) and name != package]
    assert inner
    for name in MODULES:
        if not _within(name, package):
            assert [each.where for each in _imports(name) if _within(each.name, *inner)] == []


def test_the_client_imports_foreign_libraries_only_inside_functions() -> None:
    heavy = ("torch", "numpy", "psutil", "pynvml", "matplotlib", "leakline_server")
    for name in (name for name in MODULES if _within(name, "leakline")):
        loaded = [each for each in _imports(name) if each.when == "loaded"]
        assert [each.where for each in loaded if _within(each.name, *heavy)] == []


# -- size of folders ---------------------------------------------------------------------------------------

MOST_MODULES_OF_A_FOLDER = 20
MOST_MODULES_OF_THE_CLIENTS_ROOT = 10
# Every feature of the pages has these modules, and every distribution has errors.
IN_MANY_FOLDERS = {"__init__", "api", "pages", "view", "errors"}
# Packages that re-export names; any other __init__ is only a docstring.
FACADES = {
    "leakline", "leakline.analysis", "leakline.cli", "leakline.importing", "leakline.report",
    "leakline_server.store.series",
}  # fmt: skip


def test_no_folder_has_too_many_modules_and_no_two_modules_the_same_name() -> None:
    folders: Counter[str] = Counter()
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, path in MODULES.items():
        if path.stem != "__init__":
            folders[str(path.parent.relative_to(ROOT))] += 1
        if path.stem not in IN_MANY_FOLDERS:
            names[name.partition(".")[0], path.stem].append(name)
    most = {"agent_client/leakline": MOST_MODULES_OF_THE_CLIENTS_ROOT}
    assert {f: n for f, n in folders.items() if n > most.get(f, MOST_MODULES_OF_A_FOLDER)} == {}
    assert [same for same in names.values() if len(same) > 1] == []


def test_every_package_documents_its_imports_and_only_facades_import() -> None:
    for name, path in MODULES.items():
        if path.stem == "__init__":
            body = ast.parse(path.read_text()).body
            words = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
            for part in ("mports ", "Start reading in "):
                assert part in words or name == "leakline", f"the docstring of {name} lacks: {part}"
            if name not in FACADES:
                assert len(body) == 1, f"{name}: an __init__ that imports makes circles"


# -- cost of `import leakline`, which is in the first lines of a training script ---------------------------

REPEATS = 4
# Per cent of the CPU of an empty interpreter run. Measured 9; `import asyncio` costs 5 to 6.
MOST_OF_AN_EMPTY_START = 14.0
MOST_MODULES_OF_OURS = 108
MOST_MODULES = 212
# Packages of the server and the program, and modules loaded on first use.
HEAVY = {
    *("torch", "numpy", "pandas", "psutil", "pynvml", "requests", "matplotlib"),
    *("leakline_server", "fastapi", "starlette", "pydantic", "sqlalchemy", "jinja2", "uvicorn", "msgspec"),
    *("leakline._native", "leakline.analysis", "leakline.report", "leakline.cli", "leakline.transport.spool_upload"),
    *("http.client", "ssl", "asyncio", "unittest", "multiprocessing", "sqlite3", "tracemalloc"),
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return an environment with compiled modules, as in an installed package, wherever the tests may write."""
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPROFILEIMPORTTIME"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


def test_importing_leakline_loads_nothing_heavy_or_optional(
    environment: Mapping[str, str],
) -> None:
    """Import neither server, torch nor numpy, only few modules, and start no thread."""
    code = (
        "import sys, threading, json; before = set(sys.modules); import leakline; "
        "print(json.dumps([sorted(set(sys.modules) - before), threading.active_count()]))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], env=environment)
    modules, threads = json.loads(out)
    loaded = set(modules)
    assert "leakline" in loaded and threads == 1
    assert loaded & HEAVY == set()
    ours = {name for name in loaded if name.partition(".")[0] == "leakline"}
    assert len(ours) <= MOST_MODULES_OF_OURS, sorted(ours)
    assert len(loaded) <= MOST_MODULES, sorted(loaded - ours)


def test_importing_leakline_costs_little_more_than_starting_python(
    environment: Mapping[str, str],
) -> None:
    _start("import leakline", environment)
    # In turns, so that other work on the machine slows both.
    starts = [
        (_start("pass", environment), _start("import leakline", environment))
        for _ in range(REPEATS)
    ]
    empty, ours = (min(column) for column in zip(*starts, strict=True))
    assert ours < MOST_OF_AN_EMPTY_START * empty, f"{ours / empty:.1f} times an empty start"


def test_importing_leakline_does_not_load_the_native_module(
    environment: Mapping[str, str],
) -> None:
    """A compiled module may be missing, broken or for another interpreter, so the import must not load it."""
    opened = "import sys; sys.addaudithook(lambda event, args: event == 'import' and '_native' in args[0] and 1 / 0); "
    subprocess.run([sys.executable, "-c", opened + "import leakline"], env=environment, check=True)


def _start(code: str, environment: Mapping[str, str]) -> float:
    """Return the CPU seconds of one interpreter from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


# -- the public API is one list ----------------------------------------------------------------------------

RUN_CALLS = {
    "generation", "episode", "epoch", "step", "phase", "snapshot", "expect", "track", "gauge", "cleanup",
    "register_cleanup", "mark", "note", "band", "budget", "fix", "report", "finish", "on",
    "find_holders", "census",
}  # fmt: skip


def test_the_public_names_match_the_list() -> None:
    public = {"init", "auto", "current", "Run", "LeaklineError", "BadArgument", "__version__"}
    assert set(leakline.__all__) == public
    assert all(hasattr(leakline, name) for name in public)


def test_a_run_has_every_call_of_the_contract_with_a_docstring() -> None:
    for call in RUN_CALLS:
        assert getattr(leakline.Run, call).__doc__, f"Run.{call} has no docstring"
        assert hasattr(leakline.current(), call), f"the run that does nothing has no {call}"


def test_the_version_is_the_same_everywhere() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    package = (ROOT / "agent_client" / "js" / "package.json").read_text()
    assert f'"version": "{leakline.__version__}"' in package
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest.group(1) == leakline.__version__
