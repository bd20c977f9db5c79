"""Who may import whom, what `import leakline` costs and loads, and the names that people may type."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import leakline

ROOT = Path(__file__).resolve().parents[2]

# -- the import table of ARCHITECTURE.md, held by reading every import statement ----------------------------

# Room (longest prefix wins) -> prefixes of what it may import besides the standard library and itself.
TABLE: dict[str, tuple[str, ...]] = {
    "leakline.snapshot": (),
    "leakline.settings": ("leakline.errors", "leakline.connection", "leakline.text_format", "leakline.snapshot"),
    "leakline.text_format": ("leakline.errors",),
    "leakline.accounts": (),
    "leakline.errors": (),
    "leakline.analysis": ("leakline.snapshot", "leakline.text_format"),
    "leakline.kills": ("leakline.snapshot", "leakline.text_format", "leakline.analysis"),
    "leakline.probes": ("leakline.snapshot", "torch", "numpy", "psutil"),
    "leakline.holders": ("leakline.snapshot", "leakline.probes", "torch", "numpy"),
    "leakline.spool": ("leakline.snapshot", "leakline.errors", "leakline.batches", "leakline.breathing",
                       "leakline.accounts"),
    "leakline.batches": ("leakline.snapshot",),
    "leakline.rewriting": ("leakline.snapshot", "leakline.batches", "leakline.spool", "leakline.descriptor"),
    "leakline.connection": ("leakline.breathing", "leakline.descriptor"),
    "leakline.delivery": ("leakline.snapshot", "leakline.errors", "leakline.connection", "leakline.text_format"),
    "leakline.integrations": ("leakline.run", "leakline.blocks", "leakline.settings", "leakline.errors",
                              "leakline.guard", "leakline.declarations", "lightning", "transformers",
                              "stable_baselines3", "keras", "gymnasium"),
    "leakline.markup": ("leakline.text_format",),
    "leakline.drill": ("leakline", "torch"),
    "leakline.importing": ("leakline.snapshot", "leakline.spool", "leakline.batches", "leakline.names",
                           "leakline.text_format", "leakline.errors",
                           "leakline.analysis"),
    "leakline.cli": ("leakline", "leakline_server", "uvicorn", "standardwebhooks"),
    "leakline_server.store": ("sqlalchemy", "alembic", "msgspec", "numpy", "zstandard", "leakline.snapshot",
                              "leakline.accounts", "leakline.analysis", "leakline.kills", "leakline_server.limits",
                              "leakline_server.store"),
    "leakline_server.limits": (),
    "leakline_server.texts": ("leakline_server.limits",),
    "leakline_server.web": ("fastapi", "starlette", "pydantic", "jinja2", "markupsafe", "markdown_it",
                            "prometheus_client",
                            "msgspec", "zstandard", "leakline", "leakline_server"),
    "leakline_server.workers": ("leakline", "leakline_server"),
    "leakline_server.alerts": ("standardwebhooks", "apprise", "requests", "pydantic", "leakline",
                               "leakline_server.store", "leakline_server.config", "leakline_server.limits",
                               "leakline_server.alerts"),
}  # fmt: skip

# Room -> prefixes it must never import, whatever else holds.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "leakline": ("leakline_server", "fastapi", "sqlalchemy", "jinja2", "msgspec"),
    "leakline.run": ("leakline.integrations",),
    "leakline.cli.serve": (),
    "leakline.probes": ("leakline.sender", "leakline.run", "leakline.sampler"),
    "leakline.sampler": ("leakline.sender", "leakline.run"),
    "leakline.sender": ("leakline.probes", "leakline.run", "leakline.sampler"),
    "leakline.spool": ("leakline.probes", "leakline.run"),
    "leakline.delivery": ("leakline.probes", "leakline.run"),
    "leakline.report": ("leakline.probes", "leakline.run", "leakline.sampler"),
    "leakline.drill": ("leakline.probes", "leakline.run", "leakline.sampler", "leakline.cli"),
    "leakline_server.store": ("fastapi", "starlette", "jinja2", "leakline_server.web", "leakline_server.workers"),
    "leakline_server.ingest": ("fastapi", "sqlalchemy"),
    "leakline_server.otlp": ("fastapi", "sqlalchemy", "leakline_server.web", "leakline_server.store"),
    "leakline_server.charts": ("fastapi", "sqlalchemy"),
    "leakline_server.chart_outlook": ("fastapi", "sqlalchemy"),
    "leakline_server.live": ("fastapi", "sqlalchemy"),
    "leakline_server.alerts": ("fastapi", "sqlalchemy"),
    "leakline_server.workers": ("fastapi",),
    "leakline_server.web": ("sqlalchemy", "leakline_server.workers"),
}  # fmt: skip


def _modules() -> Iterator[tuple[str, Path]]:
    for base in ("agent_client", "server"):
        for path in sorted((ROOT / base).rglob("*.py")):
            parts = path.relative_to(ROOT / base).with_suffix("").parts
            yield ".".join(p for p in parts if p != "__init__"), path


def _imports(name: str, path: Path) -> Iterator[tuple[str, str, bool]]:
    """(imported module, where, at top level) of what is not of the standard library."""
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    at_run_time = [n for n in tree.body if not _is_put_off(n)]
    top = set(ast.walk(ast.Module(body=at_run_time, type_ignores=[])))
    for node in ast.walk(tree):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            imported = [f"{module}.{alias.name}" for alias in node.names]
        for each in imported:
            if each.split(".")[0] not in sys.stdlib_module_names:
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} imports {each}"
                yield each, where, node in top


def _is_put_off(node: ast.AST) -> bool:
    """What a definition has inside, and `if TYPE_CHECKING:`, which nothing runs."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _within(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


MODULES = list(_modules())


def test_the_table_speaks_of_rooms_that_exist() -> None:
    for room in {*TABLE, *FORBIDDEN}:
        assert any(_within(name, room) for name, _ in MODULES), f"no such room: {room}"


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_a_room_imports_only_what_the_tables_allow(name: str, path: Path) -> None:
    room = max((room for room in TABLE if _within(name, room)), key=len, default=None)
    above = {
        room: forbidden
        for room, forbidden in FORBIDDEN.items()
        if _within(name, room) and (room != "leakline" or not _within(name, "leakline.cli"))
    }
    for imported, where, _ in _imports(name, path):
        if room is not None:
            assert _within(imported, room, *TABLE[room]), f"{where}; {room} may not"
        for below, forbidden in above.items():
            assert not _within(imported, *forbidden), f"{where}, forbidden in {below}"


def test_the_client_imports_foreign_libraries_only_inside_functions() -> None:
    heavy = ("torch", "numpy", "psutil", "pynvml", "matplotlib", "leakline_server")
    for name, path in MODULES:
        if _within(name, "leakline"):
            for imported, where, at_top in _imports(name, path):
                assert not (at_top and _within(imported, *heavy)), f"{where} at the top"


# -- `import leakline` is in the first lines of a training script -------------------------------------------

REPEATS = 7
# Of the CPU of an interpreter that starts and ends. Measured 9; `import asyncio` is 5 to 6.
MOST_OF_AN_EMPTY_START = 14.0
MOST_MODULES_OF_OURS = 95
MOST_MODULES = 200
# The server's, the program's, and what is loaded when it is first needed.
HEAVY = {
    *("torch", "numpy", "pandas", "psutil", "pynvml", "requests", "matplotlib"),
    *("leakline_server", "fastapi", "starlette", "pydantic", "sqlalchemy", "jinja2", "uvicorn", "msgspec"),
    *("leakline._native", "leakline.analysis", "leakline.report", "leakline.cli", "leakline.uploading"),
    *("http.client", "ssl", "asyncio", "unittest", "multiprocessing", "sqlite3", "tracemalloc"),
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """As in an installed package: compiled once, wherever the tests may write."""
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPROFILEIMPORTTIME"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


def test_importing_leakline_loads_nothing_that_is_heavy_or_may_be_missing(
    environment: Mapping[str, str],
) -> None:
    """Neither server nor torch nor numpy; few modules; and it starts no thread."""
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


def test_importing_leakline_takes_little_more_than_starting_python(
    environment: Mapping[str, str],
) -> None:
    _start("import leakline", environment)
    # In turns, so that a busy machine slows both.
    starts = [
        (_start("pass", environment), _start("import leakline", environment))
        for _ in range(REPEATS)
    ]
    empty, ours = (min(column) for column in zip(*starts, strict=True))
    assert ours < MOST_OF_AN_EMPTY_START * empty, f"{ours / empty:.1f} times an empty start"


def test_importing_leakline_leaves_the_cost_of_the_native_module_for_later(
    environment: Mapping[str, str],
) -> None:
    """What is compiled may be missing, broken or of another interpreter: the import must not meet it."""
    opened = "import sys; sys.addaudithook(lambda event, args: event == 'import' and '_native' in args[0] and 1 / 0); "
    subprocess.run([sys.executable, "-c", opened + "import leakline"], env=environment, check=True)


def _start(code: str, environment: Mapping[str, str]) -> float:
    """CPU seconds of one interpreter from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


# -- what people may type is one list, and nothing else is public -------------------------------------------

RUN_CALLS = {
    "generation", "episode", "epoch", "step", "phase", "snapshot", "expect", "track", "gauge", "cleanup",
    "register_cleanup", "mark", "note", "band", "budget", "fix", "report", "finish", "on",
    "find_holders", "census",
}  # fmt: skip


def test_the_public_names_are_the_list() -> None:
    public = {"init", "current", "Run", "LeaklineError", "BadArgument", "__version__"}
    assert set(leakline.__all__) == public
    assert all(hasattr(leakline, name) for name in public)


def test_a_run_has_every_call_of_the_contract_and_each_is_explained() -> None:
    for call in RUN_CALLS:
        assert getattr(leakline.Run, call).__doc__, f"Run.{call} has no docstring"
        assert hasattr(leakline.current(), call), f"the run that does nothing has no {call}"
