"""The orders in which runs are listed, and where in one of them a page goes on.

Each order has an index that ends with the id, so ties have one order, and a page is found where the one before ended
without counting from the start. What a run has no value for comes last in either direction: the runs with a value are
one stretch of the index, those without another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    Text,
    UnaryExpression,
    literal,
    select,
    tuple_,
)

from ..schema import runs

By = Literal["seen", "started", "name", "growth", "memory", "out"]
Value = float | int | str

_COLUMNS: Final[Mapping[By, Column[Any]]] = {
    "seen": runs.c.last_seen_at,
    "started": runs.c.started_at,
    "name": runs.c.name,
    "growth": runs.c.growth_bytes,
    "memory": runs.c.rss_bytes,
    "out": runs.c.oom_at,
}
ORDERS: Final[tuple[By, ...]] = tuple(_COLUMNS)
# Read from A on, and from the one that runs out first; all others from the newest or largest on.
_RISING: Final = frozenset({"name", "out"})
_CURSOR: Final = re.compile(r"(-?[a-z]{1,10})/([\w.:-]{1,128})(?:/(.{0,512}))?", re.DOTALL)
_LARGEST: Final = 2**63


class BadCursor(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Order:
    """``turned``: from the other end."""

    by: By
    turned: bool = False

    @property
    def falling(self) -> bool:
        """Whether what is largest comes first."""
        return (self.by in _RISING) == self.turned

    def __str__(self) -> str:
        return f"-{self.by}" if self.turned else self.by


NEWEST: Final = Order("started")
LAST_SEEN: Final = Order("seen")


@dataclass(frozen=True, slots=True)
class Place:
    """Of a run in an order. ``value`` is None where the run has none."""

    value: Value | None
    run_id: str


def order_of(text: str) -> Order | None:
    """``growth``, or ``-growth`` from the other end; None where there is no such order."""
    for by in ORDERS:
        if text.removeprefix("-") == by:
            return Order(by, text.startswith("-"))
    return None


def sorted_by(verdict: Mapping[str, Any]) -> dict[str, float | None]:
    """Of a verdict in its JSON form, what runs are sorted by: columns of ``runs``."""
    growth, oom = verdict["growth_bytes_per_generation"], verdict["oom"]
    at = None if oom["risk"] == "none" else oom["at"]
    return {
        "growth_bytes": None if growth is None else float(growth["estimate"]),
        "oom_at": None if at is None else datetime.fromisoformat(at["estimate"]).timestamp(),
    }


def places(
    connection: Connection,
    order: Order,
    after: Place | None,
    limit: int,
    where: Sequence[ColumnElement[bool]],
) -> list[Place]:
    """The next ``limit`` runs for which all of ``where`` holds."""
    found: list[Place] = []
    if after is None or after.value is not None:
        found = _with_value(connection, order, after, limit, where)
        after = None
    if len(found) < limit and _COLUMNS[order.by].nullable:
        found += _without(connection, order, after, limit - len(found), where)
    return found


def _with_value(
    connection: Connection,
    order: Order,
    after: Place | None,
    limit: int,
    where: Sequence[ColumnElement[bool]],
) -> list[Place]:
    column = _COLUMNS[order.by]
    query = select(column, runs.c.id).where(column.is_not(None), *where)
    if after is not None:
        here = tuple_(column, runs.c.id)
        there = tuple_(literal(after.value, column.type), literal(after.run_id, Text()))
        query = query.where(here < there if order.falling else here > there)
    query = query.order_by(_directed(column, order), _directed(runs.c.id, order)).limit(limit)
    return [Place(value, run_id) for value, run_id in connection.execute(query)]


def _without(
    connection: Connection,
    order: Order,
    after: Place | None,
    limit: int,
    where: Sequence[ColumnElement[bool]],
) -> list[Place]:
    query = select(runs.c.id).where(_COLUMNS[order.by].is_(None), *where)
    if after is not None:
        beyond = runs.c.id < after.run_id if order.falling else runs.c.id > after.run_id
        query = query.where(beyond)
    query = query.order_by(_directed(runs.c.id, order)).limit(limit)
    return [Place(None, run_id) for run_id in connection.scalars(query)]


def _directed(column: Column[Any], order: Order) -> UnaryExpression[Any]:
    return column.desc() if order.falling else column.asc()


def write_cursor(order: Order, place: Place) -> str:
    if place.value is None:
        return f"{order}/{place.run_id}"
    return f"{order}/{place.run_id}/{place.value}"


def read_cursor(order: Order, cursor: str) -> Place:
    """Raises BadCursor, also for one of another order."""
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[1] != str(order) or "\x00" in cursor:
        raise BadCursor(cursor)
    value = None if found[3] is None else _value(_COLUMNS[order.by], found[3])
    return Place(value, found[2])


def _value(column: Column[Any], text: str) -> Value:
    if isinstance(column.type, Text):
        return text
    try:
        number: Value = int(text) if isinstance(column.type, Integer) else float(text)
    except ValueError as error:
        raise BadCursor(text) from error
    if isinstance(number, int) and abs(number) < _LARGEST:
        return number
    if isinstance(number, float) and math.isfinite(number):
        return number
    raise BadCursor(text)
