"""Lines that run while a module is imported, such as constants and defaults: no test takes them, whoever uses what they
bind does.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# (file, line)
Line = tuple[str, int]


def uses(files: Iterable[Path]) -> dict[str, set[Line]]:
    """Name -> where it is read, as a variable or an attribute."""
    found: dict[str, set[Line]] = defaultdict(set)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found[node.id].add((str(file), node.lineno))
            elif isinstance(node, ast.Attribute):
                found[node.attr].add((str(file), node.lineno))
    return found


def users_of(source: Path, line: int, known: Mapping[str, set[Line]]) -> set[Line]:
    """The lines that read what this line binds."""
    names = set(_bound(ast.parse(source.read_text()).body, line))
    return set().union(*(known.get(name, ()) for name in names))


def _bound(body: Iterable[ast.stmt], line: int) -> Iterator[str]:
    for statement in body:
        first = min(
            [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]
        )
        if not first <= line <= (statement.end_lineno or first):
            continue
        if isinstance(statement, ast.ClassDef):
            inner = set(_bound(statement.body, line))
            yield from inner or {statement.name}
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            # Its defaults and decorators; what is in it runs when it is called.
            if line < statement.body[0].lineno:
                yield statement.name
        else:
            yield from (
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )
