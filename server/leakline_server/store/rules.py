"""Rules that people set, and what each last said of each run. What is said when is judged in `alerts/thresholds.py`,
and told by `alerts/rule_alerts.py`.

Rules of the file belong to the file: every start brings them to what it says, known by their names, so that their
numbers and what they said of runs stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, Engine, Row, Select, delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ..limits import MAX_RULES
from .engine import writing
from .runs import ENDED
from .tables import alerts, rule_states, rules, runs

Measure = Literal["value", "rate", "forecast"]
Source = Literal["api", "page", "file"]

FILE: Final = "file"
# Of one rule, as the list of rules tells them.
MAX_FIRING: Final = 50
_SUBJECT: Final = "rule "
# What makes it another rule: what was said before is of no use then.
_JUDGED: Final = frozenset({"project", "run", "series", "measure"})


@dataclass(frozen=True, slots=True)
class Terms:
    """What a rule says. It fires above ``above`` and below ``below``, in the unit of the series.

    A ``rate`` is per generation, a ``forecast`` in generations and without a series. ``project`` and ``run`` (an id or
    a name) are None for all. ``hold`` and ``grace``: generations in a row outside before it fires, and inside before
    it is over. ``advice`` says what to do then.
    """

    name: str
    series: str
    measure: Measure = "value"
    above: float | None = None
    below: float | None = None
    project: str | None = None
    run: str | None = None
    hold: int = 1
    grace: int = 3
    advice: str = ""
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Terms):
    """A rule that is stored. ``created_at`` is Unix seconds."""

    id: int
    source: Source
    created_at: float


@dataclass(frozen=True, slots=True)
class State:
    """What a rule last said of a run: since ``generation`` it fires, or does not; ``value`` is the reading there.

    ``changed_at`` is Unix seconds. ``since`` is for forecasts: from which generation on it says the opposite.
    """

    firing: bool
    generation: int | None
    value: float | None
    changed_at: float
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Firing:
    """A run that has not ended, in which a rule fires."""

    run: str
    project: str
    name: str
    generation: int | None
    value: float | None
    changed_at: float


class TooManyRules(ValueError):
    def __init__(self) -> None:
        super().__init__(f"there are {MAX_RULES} rules at most; remove some first")


class SameRule(ValueError):
    """There is such a rule already."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(f"rule {rule.id} says the same")
        self.rule = rule


def list_rules(engine: Engine, limit: int = MAX_RULES, after: int = 0) -> list[Rule]:
    """At most ``limit`` rules whose ids are above ``after``, by id."""
    query = select(rules).where(rules.c.id > after).order_by(rules.c.id).limit(limit)
    with engine.connect() as connection:
        return [_rule(row) for row in connection.execute(query)]


def get_rule(engine: Engine, rule_id: int) -> Rule | None:
    with engine.connect() as connection:
        return _found(connection, rule_id)


def add_rules(engine: Engine, new: Sequence[Terms], source: Source, now: float) -> list[Rule]:
    """All or none of them. Raises TooManyRules or SameRule."""
    with writing(engine) as connection:
        _one_at_a_time(connection)
        _check_room(connection, len(new))
        known = {_what(rule): rule for rule in _all(connection)}
        for terms in new:
            if _what(terms) in known:
                raise SameRule(known[_what(terms)])
        return [_insert(connection, terms, source, now) for terms in new]


def change_rule(engine: Engine, rule_id: int, terms: Terms) -> Rule | None:
    """The rule as it is then; None when there is no such rule. Raises SameRule.

    A rule that asks something else, or nothing any more, forgets what it said.
    """
    with writing(engine) as connection:
        _one_at_a_time(connection)
        before = _found(connection, rule_id)
        if before is None:
            return None
        for rule in _all(connection):
            if rule.id != rule_id and _what(rule) == _what(terms):
                raise SameRule(rule)
        _replace(connection, before, terms)
        return _found(connection, rule_id)


def remove_rule(engine: Engine, rule_id: int) -> bool:
    """Whether it was there."""
    with writing(engine) as connection:
        gone = connection.execute(
            delete(rules).where(rules.c.id == rule_id).returning(rules.c.id)
        ).first()
    return gone is not None


def take_file(engine: Engine, wanted: Sequence[Terms], now: float) -> None:
    """Bring the rules of the file to what it says now. Raises TooManyRules."""
    with engine.connect() as connection:
        # Nearly every start: there is no file, and there never was one.
        if not wanted and not _of_file(connection):
            return
    with writing(engine) as connection:
        _one_at_a_time(connection)
        known = {rule.name: rule for rule in _of_file(connection)}
        gone = [rule.id for name, rule in known.items() if name not in {t.name for t in wanted}]
        connection.execute(delete(rules).where(rules.c.id.in_(gone)))
        _check_room(connection, sum(terms.name not in known for terms in wanted))
        for terms in wanted:
            before = known.get(terms.name)
            if before is None:
                _insert(connection, terms, FILE, now)
            else:
                _replace(connection, before, terms)


def said_of(
    engine: Engine, run_id: str, project: str, name: str
) -> list[tuple[Rule, State | None]]:
    """The rules that are to be held against a run, by id, with what each last said of it."""
    with engine.connect() as connection:
        concerned = [_rule(row) for row in connection.execute(_concerning(run_id, project, name))]
        states = _states_of(connection, run_id) if concerned else {}
    return [(rule, states.get(rule.id)) for rule in concerned]


def concerning(connection: Connection, run_id: str, project: str, name: str) -> list[Rule]:
    """The rules that are to be held against a run, by id. They are there until this transaction ends."""
    # What it said of the run cannot be written once the rule is gone.
    query = _concerning(run_id, project, name).with_for_update(read=True, key_share=True)
    return [_rule(row) for row in connection.execute(query)]


def states_of(connection: Connection, run_id: str) -> dict[int, State]:
    """Rule id -> what it last said of the run. Other servers wait here until this transaction ends."""
    connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))
    return _states_of(connection, run_id)


def told_since(connection: Connection, run_id: str, since: float) -> dict[int, int]:
    """Rule id -> how many alerts it told of the run after ``since``, Unix seconds."""
    query = select(alerts.c.subject).where(alerts.c.run_id == run_id, alerts.c.created_at > since)
    subjects = connection.scalars(query.where(alerts.c.subject.startswith(_SUBJECT)))
    return Counter(int(subject.removeprefix(_SUBJECT)) for subject in subjects)


def subject_of(rule: Rule) -> str:
    """What alerts of the rule are about."""
    return f"{_SUBJECT}{rule.id}"


def save_states(connection: Connection, run_id: str, states: Mapping[int, State]) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    for rule_id, state in states.items():
        values = asdict(state)
        connection.execute(
            dialect.insert(rule_states)
            .values(rule_id=rule_id, run_id=run_id, **values)
            .on_conflict_do_update(index_elements=["rule_id", "run_id"], set_=values)
        )


def firing(engine: Engine, rule_ids: Iterable[int]) -> dict[int, list[Firing]]:
    """Rule id -> the runs in which it fires now, the newest first and at most MAX_FIRING; those that have ended are
    left out."""
    query = (
        select(rule_states, runs.c.project, runs.c.name)
        .join(runs, runs.c.id == rule_states.c.run_id)
        .where(rule_states.c.rule_id.in_(list(rule_ids)), rule_states.c.firing)
        .where(runs.c.state.not_in(ENDED))
        .order_by(rule_states.c.changed_at.desc(), rule_states.c.id)
    )
    found: dict[int, list[Firing]] = {}
    with engine.connect() as connection:
        for row in connection.execute(query):
            of_rule = found.setdefault(row.rule_id, [])
            if len(of_rule) < MAX_FIRING:
                of_rule.append(
                    Firing(row.run_id, row.project, row.name, row.generation, row.value, row.changed_at)
                )  # fmt: skip
    return found


def terms_of(rule: Rule) -> Terms:
    return Terms(**{name: getattr(rule, name) for name in _NAMES})


def _insert(connection: Connection, terms: Terms, source: Source, now: float) -> Rule:
    row = connection.execute(
        insert(rules).values(**asdict(terms), source=source, created_at=now).returning(rules)
    ).one()
    return _rule(row)


def _replace(connection: Connection, before: Rule, terms: Terms) -> None:
    if terms == terms_of(before):
        return
    connection.execute(update(rules).where(rules.c.id == before.id).values(**asdict(terms)))
    other = any(getattr(before, name) != getattr(terms, name) for name in _JUDGED)
    if other or not terms.enabled:
        connection.execute(delete(rule_states).where(rule_states.c.rule_id == before.id))


def _check_room(connection: Connection, more: int) -> None:
    number = connection.scalar(select(func.count()).select_from(rules)) or 0
    if number + more > MAX_RULES:
        raise TooManyRules


def _of_file(connection: Connection) -> list[Rule]:
    return [rule for rule in _all(connection) if rule.source == FILE]


def _concerning(run_id: str, project: str, name: str) -> Select[Any]:
    return (
        select(rules)
        .where(
            rules.c.enabled,
            or_(rules.c.project.is_(None), rules.c.project == project),
            or_(rules.c.run.is_(None), rules.c.run.in_((run_id, name))),
        )
        .order_by(rules.c.id)
    )


def _states_of(connection: Connection, run_id: str) -> dict[int, State]:
    rows = connection.execute(select(rule_states).where(rule_states.c.run_id == run_id))
    return {row.rule_id: _state(row) for row in rows}


def _all(connection: Connection) -> list[Rule]:
    return [_rule(row) for row in connection.execute(select(rules).order_by(rules.c.id))]


def _found(connection: Connection, rule_id: int) -> Rule | None:
    row = connection.execute(select(rules).where(rules.c.id == rule_id)).first()
    return None if row is None else _rule(row)


def _what(terms: Terms) -> tuple[Any, ...]:
    """Two rules with the same would tell everything twice."""
    return (
        terms.name, terms.project, terms.run, terms.series, terms.measure, terms.above, terms.below,
    )  # fmt: skip


def _one_at_a_time(connection: Connection) -> None:
    # On SQLite the transaction that writes is alone already.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239116)")


_NAMES: Final = tuple(Terms.__dataclass_fields__)


def _rule(row: Row[Any]) -> Rule:
    return Rule(
        **{name: getattr(row, name) for name in _NAMES},
        id=row.id,
        source=row.source,
        created_at=row.created_at,
    )


def _state(row: Row[Any]) -> State:
    return State(row.firing, row.generation, row.value, row.changed_at, row.since)
