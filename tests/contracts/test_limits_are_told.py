"""Each bound of the server is named once, and docs/limits.md says of it what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from leakline_server import limits

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "server" / "leakline_server"
ROWS = re.compile(r"^\|[^|]+\|([^|]+)\|[^|]+\| `(\w+)` \|$", re.M)
TOLD = {
    name: said.strip() for said, name in ROWS.findall((ROOT / "docs" / "limits.md").read_text())
}
NAMES = sorted(name for name in vars(limits) if name.isupper())
UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def shown(name: str, value: float) -> str:
    if "_BYTES" in name or name.startswith("BYTES"):
        unit, size = next((u, s) for u, s in UNITS if value >= s)
        return f"{value / size:g} {unit}"
    return f"{value:,.0f}" + (" s" if name.endswith("SECONDS") else "")


def test_there_are_limits() -> None:
    assert len(NAMES) > 40


def test_nothing_is_told_that_is_no_limit() -> None:
    assert set(TOLD) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_told_as_it_is(name: str) -> None:
    assert TOLD[name] == shown(name, getattr(limits, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_is_used(name: str) -> None:
    used = re.compile(rf"\b{name}\b")
    assert [p for p in SERVER.rglob("*.py") if p.name != "limits.py" and used.search(p.read_text())]


# Of pydantic and msgspec, and of parameters of routes.
DECLARE = {"Field", "Query", "Path", "Meta", "Header", "Form", "Body", "Cookie"}
BOUNDS = {"max_length", "min_length", "le", "lt", "ge", "gt", "max_items", "multiple_of"}


def declared_bounds(text: str) -> list[tuple[str, ast.expr]]:
    """(which bound, its value) of whatever is declared with one; a fixed length is a shape, and none."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in DECLARE):
            continue
        said = {k.arg: k.value for k in node.keywords if k.arg in BOUNDS}
        lengths = [ast.dump(said[name]) for name in ("min_length", "max_length") if name in said]
        if len(lengths) == 2 and len(set(lengths)) == 1:
            continue
        found += [(str(name), value) for name, value in said.items()]
    return found


def of_its_own(value: ast.expr) -> list[str]:
    """What a bound is made of that `limits.py` does not name; nothing and one need no name."""
    parts = list(ast.walk(value))
    numbers = [str(n.value) for n in parts if isinstance(n, ast.Constant) and n.value not in (0, 1)]
    return numbers + [n.id for n in parts if isinstance(n, ast.Name) and n.id not in NAMES]


def test_every_bound_of_a_schema_is_one_of_them() -> None:
    seen = 0
    for path in SERVER.rglob("*.py"):
        for bound, value in declared_bounds(path.read_text()):
            seen += 1
            own = of_its_own(value)
            assert not own, f"{path.name}:{value.lineno} says {bound}={ast.unparse(value)}"
    assert seen > 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Field(max_length=12)", ["12"]),
        ("Query(ge=1, le=2**31 - 1)", ["2", "31"]),
        ("Field(max_length=MAX_OF_MINE)", ["MAX_OF_MINE"]),
        ("Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)", []),
        ("Field(min_length=3, max_length=3)", []),
        ("Field(ge=0, le=1)", []),
    ],
)
def test_a_number_of_its_own_is_found(text: str, expected: list[str]) -> None:
    assert [each for _, value in declared_bounds(text) for each in of_its_own(value)] == expected


def test_no_room_gives_a_limit_a_number_of_its_own() -> None:
    for path in SERVER.rglob("*.py"):
        # Chat services have bounds of their own, and a page has room for so many rows.
        if path.name == "limits.py" or "alerts" in path.parts or path.name.endswith("_view.py"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                assert node.target.id not in NAMES, f"{path.name} defines {node.target.id} again"
