"""The sort orders of the list of runs, and its keyset pagination.

Each order has an index that ends with the id, so that ties are ordered and a page begins where the previous page ended,
without counting from the start. Runs without a value come last in either direction: they are a separate range of the
index.
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

_URGENCY: Final[ColumnElement[int]] = literal_column(URGENCY, Integer())
# Only the last column of an order may be null.
_COLUMNS: Final[Mapping[By, tuple[ColumnElement[Any], ...]]] = {
    # Do not sort by `last_seen_at`, which changes with each batch of a live run and would reorder the list all the
    # time.
    "severity": (_URGENCY, runs.c.started_at),
    "seen": (runs.c.last_seen_at,),
    "started": (runs.c.started_at,),
    "name": (runs.c.name,),
    "growth": (runs.c.growth_bytes,),
    "memory": (runs.c.rss_bytes,),
    "out": (runs.c.oom_at,),
}
ORDERS: Final[tuple[By, ...]] = tuple(_COLUMNS)
# Orders in which a run without a verdict or a reading has no value.
_NULLABLE: Final = frozenset({"growth", "memory", "out"})
# Orders that ascend by default: from A to Z, and from the earliest out-of-memory. All other orders begin with the
# largest value.
_RISING: Final = frozenset({"name", "out"})
_CURSOR: Final = re.compile(r"(-?[a-z]{1,10})/([\w.:-]{1,128})(?:/(.{0,512}))?", re.DOTALL)
_LARGEST: Final = 2**63
_MOST_SEVERE: Final = 3
_GRADES: Final[Mapping[str, int]] = {
    name: _MOST_SEVERE - at for at, name in enumerate(get_args(Priority))
}
_RISKS: Final[Mapping[str, int]] = {"critical": 3, "high": 2}


class BadCursor(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Order:
    """A sort order; ``turned`` reverses its default direction."""

    by: By
    turned: bool = False

    @property
    def falling(self) -> bool:
        """True if the largest value comes first."""
        return (self.by in _RISING) == self.turned

    def __str__(self) -> str:
        return f"-{self.by}" if self.turned else self.by


NEWEST: Final = Order("started")
SEVEREST: Final = Order("severity")


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a run in an order. ``values``: the run's values in the order's columns, or () without values."""

    values: tuple[Value, ...]
    run_id: str


def order_of(text: str) -> Order | None:
    """Parse an order, for example ``growth``, or ``-growth`` for the reverse; return None if the order is unknown."""
    for by in ORDERS:
        if text.removeprefix("-") == by:
            return Order(by, text.startswith("-"))
    return None


def sorted_by(verdict: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the sort columns of ``runs`` that are derived from a verdict, which is given as JSON."""
    # Use the growth that the list shows: the growth of the first leak, which need not be private memory, or the growth
    # of the run if there is no leak.
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
    """Return 3 for critical, 2 for major, 1 for minor, or 0 if nothing leaks and memory will not run out."""
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
    """Return the places of up to ``limit`` runs beyond ``after`` that satisfy all conditions in ``where``."""
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
    """Return ``order/run``, followed by ``/value`` if the run has a value; two values are separated by a comma."""
    values = ",".join(map(str, place.values))
    return "/".join((str(order), place.run_id, *([values] if place.values else ())))


def read_cursor(order: Order, cursor: str) -> Place:
    """Parse a cursor. Raises BadCursor if the cursor is invalid or belongs to another order."""
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
    if isinstance(number, int):
        # Postgres raises an error for a number outside the range of its type.
        if 0 <= number <= _MOST_SEVERE if column is _URGENCY else abs(number) < _LARGEST:
            return number
        raise BadCursor(text)
    if isinstance(number, float) and math.isfinite(number):
        return number
    raise BadCursor(text)
