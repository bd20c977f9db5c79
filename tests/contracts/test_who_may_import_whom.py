"""The import table of ARCHITECTURE.md, held by reading every import statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Room (longest prefix wins) -> prefixes of what it may import besides the standard library and itself.
TABLE: dict[str, tuple[str, ...]] = {
    "leakline.snapshot": (),
    "leakline.settings": ("leakline.errors", "leakline.connection", "leakline.sizes", "leakline.snapshot"),
    "leakline.sizes": ("leakline.errors",),
    "leakline.series_names": (),
    "leakline.accounts": (),
    "leakline.errors": (),
    "leakline.analysis": ("leakline.snapshot", "leakline.sizes"),
    "leakline.kills": ("leakline.snapshot", "leakline.sizes", "leakline.analysis"),
    "leakline.probes": ("leakline.snapshot", "torch", "numpy", "psutil"),
    "leakline.holders": ("leakline.snapshot", "leakline.probes", "torch", "numpy"),
    "leakline.spool": ("leakline.snapshot", "leakline.errors", "leakline.batches", "leakline.breathing",
                       "leakline.accounts"),
    "leakline.batches": ("leakline.snapshot",),
    "leakline.rewriting": (
        "leakline.snapshot", "leakline.batches", "leakline.spool", "leakline.descriptor",
    ),
    "leakline.connection": ("leakline.breathing", "leakline.descriptor"),
    "leakline.delivery": ("leakline.snapshot", "leakline.errors", "leakline.connection"),
    "leakline.integrations": ("leakline.run", "leakline.blocks", "leakline.settings", "leakline.errors",
                              "leakline.guard", "leakline.declarations", "lightning", "transformers",
                              "stable_baselines3", "keras", "gymnasium"),
    "leakline.markup": (),
    "leakline.drill": ("leakline.analysis", "leakline.markup"),
    "leakline.importing": ("leakline.snapshot", "leakline.spool", "leakline.batches", "leakline.names",
                           "leakline.sizes", "leakline.errors", "leakline.analysis"),
    "leakline.drill.small_training": ("leakline", "torch", "numpy", "matplotlib"),
    "leakline.cli": ("leakline", "leakline_server", "uvicorn"),
    "leakline_server.store": ("sqlalchemy", "alembic", "msgspec", "numpy", "zstandard", "leakline.snapshot",
                              "leakline.accounts", "leakline.analysis", "leakline.kills", "leakline_server.limits",
                              "leakline_server.store"),
    "leakline_server.limits": (),
    "leakline_server.texts": ("leakline_server.limits",),
    "leakline_server.web": ("fastapi", "starlette", "pydantic", "jinja2", "markupsafe", "markdown_it",
                            "prometheus_client",
                            "msgspec", "zstandard", "leakline", "leakline_server"),
    "leakline_server.workers": ("leakline", "leakline_server"),
    "leakline_server.alerts": ("standardwebhooks", "apprise", "requests", "leakline", "leakline_server.store",
                               "leakline_server.config", "leakline_server.limits", "leakline_server.alerts"),
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
    "leakline_server.store": (
        "fastapi",
        "starlette",
        "jinja2",
        "leakline_server.web",
        "leakline_server.workers",
    ),
    "leakline_server.ingest": ("fastapi", "sqlalchemy"),
    "leakline_server.otlp": (
        "fastapi",
        "sqlalchemy",
        "leakline_server.web",
        "leakline_server.store",
    ),
    "leakline_server.charts": ("fastapi", "sqlalchemy"),
    "leakline_server.chart_outlook": ("fastapi", "sqlalchemy"),
    "leakline_server.live": ("fastapi", "sqlalchemy"),
    "leakline_server.alerts": ("fastapi", "sqlalchemy"),
    "leakline_server.workers": ("fastapi",),
    "leakline_server.web": ("sqlalchemy", "leakline_server.workers"),
}


def _modules() -> Iterator[tuple[str, Path]]:
    for base in ("agent_client", "server"):
        for path in sorted((ROOT / base).rglob("*.py")):
            parts = path.relative_to(ROOT / base).with_suffix("").parts
            yield ".".join(p for p in parts if p != "__init__"), path


def _imports(name: str, path: Path) -> Iterator[tuple[str, int, bool]]:
    """(imported module, line, at top level)."""
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    at_run_time = [n for n in tree.body if not (_is_function(n) or _is_for_types(n))]
    top = set(ast.walk(ast.Module(body=at_run_time, type_ignores=[])))
    for node in ast.walk(tree):
        at_top = node in top
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, at_top
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno, at_top


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _is_for_types(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:`, which nothing runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _room(name: str, table: dict[str, tuple[str, ...]]) -> str | None:
    return max((room for room in table if _within(name, room)), key=len, default=None)


def _is_standard(name: str) -> bool:
    import sys

    return name.split(".")[0] in sys.stdlib_module_names or name.startswith("__future__")


MODULES = list(_modules())


def test_the_table_speaks_of_rooms_that_exist() -> None:
    names = [name for name, _ in MODULES]
    for room in {*TABLE, *FORBIDDEN}:
        assert any(_within(name, room) for name in names), f"no such room: {room}"


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_a_room_imports_only_what_the_table_allows(name: str, path: Path) -> None:
    room = _room(name, TABLE)
    if room is None:
        return
    for imported, line, _ in _imports(name, path):
        if _is_standard(imported) or _within(imported, room):
            continue
        allowed = any(_within(imported, prefix) for prefix in TABLE[room])
        assert allowed, (
            f"{path.relative_to(ROOT)}:{line} imports {imported}; {room} may import {TABLE[room]}"
        )


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_a_room_never_imports_what_stands_above_it(name: str, path: Path) -> None:
    for room, forbidden in FORBIDDEN.items():
        if not _within(name, room) or (room == "leakline" and _within(name, "leakline.cli")):
            continue
        for imported, line, _ in _imports(name, path):
            bad = [prefix for prefix in forbidden if _within(imported, prefix)]
            assert not bad, (
                f"{path.relative_to(ROOT)}:{line} imports {imported}, forbidden in {room}"
            )


def test_the_client_imports_foreign_libraries_only_inside_functions() -> None:
    for name, path in MODULES:
        if not _within(name, "leakline"):
            continue
        for imported, line, at_top in _imports(name, path):
            heavy = imported.split(".")[0] in {
                "torch",
                "numpy",
                "psutil",
                "pynvml",
                "matplotlib",
                "leakline_server",
            }
            assert not (heavy and at_top), (
                f"{path.relative_to(ROOT)}:{line} imports {imported} at the top"
            )


def test_only_leakline_itself_is_imported_by_the_analysis() -> None:
    for name, path in MODULES:
        if _within(name, "leakline.analysis"):
            for imported, line, _ in _imports(name, path):
                assert (
                    _is_standard(imported)
                    or _within(imported, "leakline.analysis")
                    or _within(imported, "leakline.snapshot")
                    or _within(imported, "leakline.sizes")
                ), f"{path.relative_to(ROOT)}:{line} imports {imported}"
