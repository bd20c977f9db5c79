"""Every small change of a module that a test should notice: a comparison, a sign, a number, a condition. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """``number`` is that of the place among all of the module, in the order in which it is walked."""

    number: int
    line: int
    change: str


def mutants(source: str) -> list[Mutant]:
    found = enumerate(_places(ast.parse(source)))
    return [Mutant(number, node.lineno, change) for number, (node, change) in found]


def mutated(source: str, mutant: Mutant) -> str:
    """The module with that one change."""
    tree = ast.parse(source)
    for number, (node, _) in enumerate(_places(tree)):
        if number == mutant.number:
            _change(node)
            break
    return ast.unparse(ast.fix_missing_locations(tree))


def _places(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    """Inside functions, and constants of the module; never annotations, texts and what is raised."""
    for node in _walk(tree):
        before = ast.unparse(node)
        if _is_place(node):
            changed = deepcopy(node)
            _change(changed)
            yield node, f"{before} -> {ast.unparse(changed)}"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(
            node, (ast.Raise, ast.Assert)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _walk(child)


def _is_place(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in _COMPARED
    if isinstance(node, ast.BinOp):
        # `%` and `+` of texts are wording.
        return type(node.op) in _COMPUTED and not any(
            isinstance(each, (ast.JoinedStr, ast.Constant)) and not _is_number(each)
            for each in (node.left, node.right)
        )
    if isinstance(node, ast.Constant):
        return _is_number(node) or isinstance(node.value, bool)
    return isinstance(node, (ast.BoolOp, ast.IfExp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub))
    )


def _is_number(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
    )


def _change(node: Any) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _COMPUTED[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node.value, bool):
        node.value = not node.value
    else:
        # Far enough that a bound that matters is another one, and never the same number.
        node.value = node.value * 2 + 1
