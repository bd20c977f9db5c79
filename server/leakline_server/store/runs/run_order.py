"""The orders in which runs are listed, and where in one of them a page goes on.

Each order has an index that ends with the id, so ties have one order, and a page is found where the one before ended
without counting from the start. What a run has no value for comes last in either direction: the runs with a value are
one stretch of the index, those without another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, get_args

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    UnaryExpression,
    literal,
    literal_column,
    select,
    tuple_,
)

from leakline.analysis.findings.verdict_summary import Priority
from leakline.analysis.status import GROWING

from ..schema import URGENCY, runs

By = Literal["severity", "seen", "started", "name", "growth", "memory", "out"]
Value = float | int | str

# The last column of an order may be null; where there are two, the first is not.
_COLUMNS: Final[Mapping[By, tuple[ColumnElement[Any], ...]]] = {
    "severity": (literal_column(URGENCY, Integer()), runs.c.last_seen_at),
    "seen": (runs.c.last_seen_at,),
    "started": (runs.c.started_at,),
    "name": (runs.c.name,),
    "growth": (runs.c.growth_bytes,),
    "memory": (runs.c.rss_bytes,),
    "out": (runs.c.oom_at,),
}
ORDERS: Final[tuple[By, ...]] = tuple(_COLUMNS)
# A run without a verdict or a reading has none; it comes last, in either direction.
_NULLABLE: Final = frozenset({"growth", "memory", "out"})
# Read from A on, and from the one that runs out first; all others from the newest or largest on.
_RISING: Final = frozenset({"name", "out"})
_CURSOR: Final = re.compile(r"(-?[a-z]{1,10})/([\w.:-]{1,128})(?:/(.{0,512}))?", re.DOTALL)
_LARGEST: Final = 2**63
_GRADES: Final[Mapping[str, int]] = {name: 3 - at for at, name in enumerate(get_args(Priority))}
_RISKS: Final[Mapping[str, int]] = {"critical": 3, "high": 2}


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
SEVEREST: Final = Order("severity")


@dataclass(frozen=True, slots=True)
class Place:
    """Of a run in an order. ``values``: of its columns; empty where the run has none."""

    values: tuple[Value, ...]
    run_id: str


def order_of(text: str) -> Order | None:
    """``growth``, or ``-growth`` from the other end; None where there is no such order."""
    for by in ORDERS:
        if text.removeprefix("-") == by:
            return Order(by, text.startswith("-"))
    return None


def sorted_by(verdict: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what runs are sorted by of a verdict in its JSON form: columns of ``runs``."""
    # As the list shows it: of what leaks first, which need not be private memory, else of the run.
    growing = (f for f in verdict["findings"] if f["status"] in GROWING)
    growth = next(growing, verdict)["growth_bytes_per_generation"]
    oom = verdict["oom"]
    at = None if oom["risk"] == "none" else oom["at"]
    return {
        "growth_bytes": None if growth is None else float(growth["estimate"]),
        "oom_at": None if at is None else datetime.fromisoformat(at["estimate"]).timestamp(),
        "severity": _severity(verdict["findings"], oom["risk"]),
    }


def _severity(findings: Iterable[Mapping[str, Any]], risk: str) -> int:
    """3 is critical, 2 major, 1 minor; 0 where nothing leaks and memory will not run out."""
    grades = [
        _GRADES[each.get("priority", "minor")] for each in findings if each["status"] in GROWING
    ]
    return max((*grades, _RISKS.get(risk, 0)))


def places(
    connection: Connection,
    order: Order,
    after: Place | None,
    limit: int,
    where: Sequence[ColumnElement[bool]],
) -> list[Place]:
    """The next ``limit`` runs for which all of ``where`` holds."""
    found: list[Place] = []
    if after is None or after.values:
        found = _with_value(connection, order, after, limit, where)
        after = None
    if len(found) < limit and order.by in _NULLABLE:
        found += _without(connection, order, after, limit - len(found), where)
    return found


def _with_value(
    connection: Connection,
    order: Order,
    after: Place | None,
    limit: int,
    where: Sequence[ColumnElement[bool]],
) -> list[Place]:
    columns = (*_COLUMNS[order.by], runs.c.id)
    query = select(*columns).where(columns[-2].is_not(None), *where)
    if after is not None:
        values = zip((*after.values, after.run_id), columns, strict=True)
        here, there = tuple_(*columns), tuple_(*(literal(v, c.type) for v, c in values))
        query = query.where(here < there if order.falling else here > there)
    query = query.order_by(*(_directed(each, order) for each in columns)).limit(limit)
    return [Place(tuple(values), run_id) for *values, run_id in connection.execute(query)]


def _without(
    connection: Connection,
    order: Order,
    after: Place | None,
    limit: int,
    where: Sequence[ColumnElement[bool]],
) -> list[Place]:
    (column,) = _COLUMNS[order.by]
    query = select(runs.c.id).where(column.is_(None), *where)
    if after is not None:
        beyond = runs.c.id < after.run_id if order.falling else runs.c.id > after.run_id
        query = query.where(beyond)
    query = query.order_by(_directed(runs.c.id, order)).limit(limit)
    return [Place((), run_id) for run_id in connection.scalars(query)]


def _directed(column: ColumnElement[Any], order: Order) -> UnaryExpression[Any]:
    return column.desc() if order.falling else column.asc()


def write_cursor(order: Order, place: Place) -> str:
    """``order/run`` and, where the run has a value, ``/value``; two values have a comma in between."""
    values = ",".join(map(str, place.values))
    return "/".join((str(order), place.run_id, *([values] if place.values else ())))


def read_cursor(order: Order, cursor: str) -> Place:
    """Raises BadCursor, also for one of another order."""
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[1] != str(order) or "\x00" in cursor:
        raise BadCursor(cursor)
    if found[3] is None:
        if order.by not in _NULLABLE:
            raise BadCursor(cursor)
        return Place((), found[2])
    columns = _COLUMNS[order.by]
    texts = found[3].split(",", len(columns) - 1)
    if len(texts) < len(columns):
        raise BadCursor(cursor)
    return Place(tuple(map(_value, columns, texts)), found[2])


def _value(column: ColumnElement[Any], text: str) -> Value:
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
