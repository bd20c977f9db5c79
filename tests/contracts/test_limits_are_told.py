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


def test_no_room_gives_a_limit_a_number_of_its_own() -> None:
    for path in SERVER.rglob("*.py"):
        # Chat services have bounds of their own, and a page has room for so many rows.
        if path.name == "limits.py" or "alerts" in path.parts or path.name.endswith("_view.py"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                assert node.target.id not in NAMES, f"{path.name} defines {node.target.id} again"
