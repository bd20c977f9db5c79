"""Assertions declared on the server: rules, and object counts accepted for a project's runs.

`alerts/rules/rule_evaluation.py` checks the rules; the analysis checks accepted counts in the same way as counts that
the program declares. Rules in the configuration file are identified by name, so that a rule keeps its id and states
when the file changes. An accepted count that is withdrawn or replaced is marked as ended; a project keeps its newest
MAX_PAST ended counts. An accepted count applies to the run on whose page it was accepted and to all runs that have sent
data since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sqlalchemy import (
    Connection,
    Engine,
    Row,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from leakline.analysis.assertions.expected_counts import replaces
from leakline.analysis.run_history import Expectation

from ...limits import MAX_ACCEPTED_COUNTS, MAX_PAST, MAX_RULES
from ..engine import keep_newest, writing
from ..schema import assertion_states, assertions, runs

Origin = Literal["rule", "accepted"]
Measure = Literal["value", "rate", "forecast"]
Source = Literal["api", "page", "file"]

FILE: Final = "file"
# The maximum number of runs listed for a firing rule.
MAX_FIRING: Final = 50
# A change to any of these fields makes a rule's last state meaningless.
_JUDGED: Final = frozenset({"project", "run", "series", "measure"})
_LIVE: Final = ("running", "silent")
_A: Final = assertions.c
_IS_RULE: Final = _A.origin == "rule"
_IS_ACCEPTED: Final = and_(_A.origin == "accepted", _A.ended_at.is_(None))
# Rule fields whose columns have different names, because the table holds all kinds of assertions.
_COLUMNS: Final = {"series": "metric", "above": "high", "below": "low"}


@dataclass(frozen=True, slots=True)
class Terms:
    """The content of a rule, which fires above ``above`` and below ``below``, in the unit of the series.

    A ``rate`` is a change per generation; a ``forecast`` is a number of generations and has no series. ``project`` and
    ``run`` (an id or a name) are None if the rule applies to all projects or runs. ``hold``: the number of consecutive
    generations outside the bounds before the rule fires; ``grace``: the number of consecutive generations inside the
    bounds before the rule resolves. ``advice`` is sent with the alert.
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
    """A stored rule. ``created_at`` is in Unix seconds."""

    id: int
    source: Source
    created_at: float


@dataclass(frozen=True, slots=True)
class State:
    """A rule's last result for a run. ``firing`` last changed at ``generation``, with the reading ``value``.

    ``changed_at`` is in Unix seconds. ``since`` is the generation at which a forecast began to contradict ``firing``.
    """

    firing: bool
    generation: int | None
    value: float | None
    changed_at: float
    since: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptedCount:
    """An object count that was accepted on the page of ``run``. ``created_at`` is in Unix seconds."""

    expectation: Expectation
    run: str
    created_at: float


class TooManyRules(ValueError):
    """Raised if more than MAX_RULES rules would be stored; the text is the message for users."""


class TooManyAcceptedCounts(Exception):
    """Raised when the project already has MAX_ACCEPTED_COUNTS accepted counts; the text is the project's name."""


class SameRule(Exception):
    """Raised when the same rule already exists; the argument is the id of the existing rule."""


def list_rules(engine: Engine, limit: int = MAX_RULES, after: int = 0) -> list[Rule]:
    """Return at most ``limit`` rules whose ids are above ``after``, ordered by id."""
    with engine.connect() as connection:
        return _rules(connection, _A.id > after, limit=limit)


def get_rule(engine: Engine, rule_id: int) -> Rule | None:
    with engine.connect() as connection:
        return next(iter(_rules(connection, _A.id == rule_id)), None)


def add_rules(engine: Engine, new: Sequence[Terms], source: Source, now: float) -> list[Rule]:
    """Add these rules; on an error, no rule is added. Raises TooManyRules or SameRule."""
    with writing(engine) as connection:
        _lock_rules(connection)
        _check_room(connection, len(new))
        for terms in new:
            _check_new(connection, terms)
        return [_insert(connection, terms, source, now) for terms in new]


def change_rule(engine: Engine, rule_id: int, terms: Terms) -> Rule | None:
    """Change and return a rule, or return None if no such rule exists. Raises SameRule.

    The rule's states are deleted if the change disables the rule or affects the values that it checks.
    """
    with writing(engine) as connection:
        _lock_rules(connection)
        for before in _rules(connection, _A.id == rule_id):
            _check_new(connection, terms, rule_id)
            return _replace(connection, before, terms)
        return None


def remove_rule(engine: Engine, rule_id: int) -> None:
    with writing(engine) as connection:
        connection.execute(delete(assertions).where(_IS_RULE, _A.id == rule_id))


def take_file(engine: Engine, wanted: Sequence[Terms], now: float) -> None:
    """Replace the stored rules of the configuration file with its current rules, ``wanted``. Raises TooManyRules."""
    with engine.connect() as connection:
        # In the common case, no configuration file with rules is or was in use, so avoid the write.
        if not wanted and not _rules(connection, _A.source == FILE):
            return
    with writing(engine) as connection:
        _lock_rules(connection)
        known = {rule.name: rule for rule in _rules(connection, _A.source == FILE)}
        gone = [rule.id for name, rule in known.items() if name not in {t.name for t in wanted}]
        connection.execute(delete(assertions).where(_A.id.in_(gone)))
        _check_room(connection, sum(terms.name not in known for terms in wanted))
        for terms in wanted:
            if terms.name not in known:
                _insert(connection, terms, FILE, now)
            elif terms != terms_of(known[terms.name]):
                _replace(connection, known[terms.name], terms)


def rules_of(
    connection: Connection, run_id: str, project: str, name: str, *, lock: bool = False
) -> list[tuple[Rule, State | None]]:
    """Return the rules that apply to a run, ordered by id, each with its last state for this run.

    ``lock`` prevents deletion of the rules and makes other servers wait here until this transaction ends.
    """
    rules = select(assertions).where(
        _IS_RULE, _A.enabled, or_(_A.project.is_(None), _A.project == project),
        or_(_A.run.is_(None), _A.run.in_((run_id, name))),
    ).order_by(_A.id)  # fmt: skip
    if lock:
        # The states of a rule cannot be written once the rule has been deleted.
        rules = rules.with_for_update(read=True, key_share=True)
    found = [_rule(row) for row in connection.execute(rules)]
    if not found:
        return []
    if lock:
        run = select(runs.c.id).where(runs.c.id == run_id)
        connection.execute(run.with_for_update(key_share=True))
    s = assertion_states.c
    states = {
        row.assertion_id: State(row.firing, row.generation, row.value, row.changed_at, row.since)
        for row in connection.execute(select(assertion_states).where(s.run_id == run_id))
    }
    return [(rule, states.get(rule.id)) for rule in found]


def save_states(connection: Connection, run_id: str, states: Mapping[int, State]) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    for rule_id, state in states.items():
        values = asdict(state)
        connection.execute(
            dialect.insert(assertion_states)
            .values(assertion_id=rule_id, run_id=run_id, **values)
            .on_conflict_do_update(index_elements=["assertion_id", "run_id"], set_=values)
        )


def firing(engine: Engine, rule_ids: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    """Return up to MAX_FIRING live runs in which each rule is firing, by rule id, latest change first.

    Each run is {run, project, name, generation, value, since}. The last three keys describe the rule's state; ``since``
    is in Unix seconds.
    """
    s, r = assertion_states.c, runs.c
    where = (
        s.run_id.label("run"),
        r.project,
        r.name,
        s.generation,
        s.value,
        s.changed_at.label("since"),
    )
    query = (
        select(s.assertion_id, *where)
        .join(runs, r.id == s.run_id)
        .where(s.assertion_id.in_(list(rule_ids)), s.firing, r.state.in_(_LIVE))
        .order_by(s.changed_at.desc(), s.id)
    )
    found: dict[int, list[dict[str, Any]]] = {}
    with engine.connect() as connection:
        for row in map(dict, connection.execute(query).mappings()):
            found.setdefault(row.pop("assertion_id"), []).append(row)
    return {rule_id: of_rule[:MAX_FIRING] for rule_id, of_rule in found.items()}


def terms_of(rule: Rule) -> Terms:
    return Terms(**{name: getattr(rule, name) for name in Terms.__dataclass_fields__})


def accept(engine: Engine, run_id: str, wanted: Expectation, now: float) -> list[str] | None:
    """Accept a count from now on, in place of the counts accepted for the same type and phase.

    Increment the revisions of the affected runs. Return the ids of the runs to examine again, or None if the run does
    not exist. Raises TooManyAcceptedCounts.
    """
    with writing(engine) as connection:
        run = _run(connection, run_id)
        if run is None:
            return None
        accepted = _accepted(connection, run.project)
        replaced = [
            row for row in accepted if _type(row) == wanted.type and replaces(wanted.after, row.scope)
        ]  # fmt: skip
        if len(accepted) - len(replaced) >= MAX_ACCEPTED_COUNTS:
            raise TooManyAcceptedCounts(run.project)
        concerned = _end(connection, run, replaced, now)
        past = _A.origin == "accepted", _A.project == run.project, _A.ended_at.is_not(None)
        keep_newest(connection, _A.id, _A.id, MAX_PAST, *past)
        connection.execute(
            insert(assertions).values(
                origin="accepted", project=run.project, metric=f"type.{wanted.type}.count", scope=wanted.after,
                low=wanted.low, high=wanted.high, run=run_id, source="page", created_at=now,
            )
        )  # fmt: skip
        return concerned


def take_back(
    engine: Engine, run_id: str, type_name: str, after: str | None, now: float
) -> list[str] | None:
    """End an accepted count for all runs, and return the ids of the runs to examine again.

    Return [] if no such count was accepted, or None if the run does not exist.
    """
    with writing(engine) as connection:
        run = _run(connection, run_id)
        if run is None:
            return None
        accepted = _accepted(connection, run.project)
        ended = [row for row in accepted if (_type(row), row.scope) == (type_name, after)]
        return _end(connection, run, ended, now) if ended else []


def accepted_in(engine: Engine, project: str) -> list[AcceptedCount]:
    """Return the accepted counts of a project, ordered by type and phase."""
    with engine.connect() as connection:
        rows = _accepted(connection, project)
    found = [AcceptedCount(_expectation(row), row.run, row.created_at) for row in rows]
    return sorted(found, key=lambda each: (each.expectation.type, each.expectation.after or ""))


def expected_of(connection: Connection, run: Row[Any]) -> tuple[Expectation, ...]:
    """Return the accepted counts that apply to ``run``, a row of the table ``runs``."""
    rows = _accepted(connection, run.project)
    live = run.state in _LIVE
    # If two counts were accepted for one phase at the same time, the newer count wins.
    found = {
        (row.metric, row.scope): _expectation(row)
        for row in rows
        if live or run.last_seen_at >= row.created_at or row.run == run.id
    }
    return tuple(found.values())


def _rules(connection: Connection, *which: Any, limit: int | None = None) -> list[Rule]:
    query = select(assertions).where(_IS_RULE, *which).order_by(_A.id).limit(limit)
    return [_rule(row) for row in connection.execute(query)]


def _insert(connection: Connection, terms: Terms, source: Source, now: float) -> Rule:
    own = {"origin": "rule", "source": source, "created_at": now}
    query = insert(assertions).values(**_values(terms), **own).returning(assertions)
    return _rule(connection.execute(query).one())


def _replace(connection: Connection, before: Rule, terms: Terms) -> Rule:
    query = update(assertions).where(_A.id == before.id).values(**_values(terms))
    row = connection.execute(query.returning(assertions)).one()
    other = any(getattr(before, name) != getattr(terms, name) for name in _JUDGED)
    if other or not terms.enabled:
        of_rule = assertion_states.c.assertion_id == before.id
        connection.execute(delete(assertion_states).where(of_rule))
    return _rule(row)


def _check_room(connection: Connection, more: int) -> None:
    number = connection.scalar(select(func.count()).select_from(assertions).where(_IS_RULE)) or 0
    if number + more > MAX_RULES:
        raise TooManyRules(f"too many rules: the limit is {MAX_RULES}; delete some rules first")


def _check_new(connection: Connection, terms: Terms, own_id: int = 0) -> None:
    """Raise SameRule if another rule would send the same alerts."""
    for rule in _rules(connection, _A.name == terms.name, _A.id != own_id):
        fields = *_JUDGED, "above", "below"
        if all(getattr(rule, name) == getattr(terms, name) for name in fields):
            raise SameRule(rule.id)


def _lock_rules(connection: Connection) -> None:
    # SQLite allows only one write transaction at a time anyway.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7239116)")


def _values(terms: Terms) -> dict[str, Any]:
    return {_COLUMNS.get(name, name): value for name, value in asdict(terms).items()}


def _rule(row: Row[Any]) -> Rule:
    fields = {name: getattr(row, _COLUMNS.get(name, name)) for name in Rule.__dataclass_fields__}
    return Rule(**fields)


def _run(connection: Connection, run_id: str) -> Row[Any] | None:
    # Postgres raises an error for text with NUL characters.
    known = "\x00" not in run_id
    query: Select[Any] = select(runs.c.id, runs.c.project).where(runs.c.id == run_id)
    return connection.execute(query).first() if known else None


def _accepted(connection: Connection, project: str) -> Sequence[Row[Any]]:
    query = select(assertions).where(_A.project == project, _IS_ACCEPTED).order_by(_A.id)
    return connection.execute(query).all()


def _type(row: Row[Any]) -> str:
    name: str = row.metric.removeprefix("type.").removesuffix(".count")
    return name


def _expectation(row: Row[Any]) -> Expectation:
    return Expectation(_type(row), int(row.low), int(row.high), row.scope, accepted=True)


def _end(connection: Connection, run: Row[Any], rows: Sequence[Row[Any]], now: float) -> list[str]:
    """End accepted counts, and return the ids of the runs to examine again.

    The runs to examine are ``run``, all live runs, and the runs on whose pages the counts were accepted. All runs
    with these counts get a new revision, so that their pages update. The verdict of a run that is not returned does not
    change until the run sends data.
    """
    of_project = runs.c.project == run.project
    theirs = [run.id, *(row.run for row in rows)]
    again = and_(of_project, or_(runs.c.state.in_(_LIVE), runs.c.id.in_(theirs)))
    applied = [and_(of_project, runs.c.last_seen_at >= row.created_at) for row in rows]
    touched = or_(again, *applied)
    # All writers that lock several runs use this order, so they cannot deadlock.
    connection.execute(
        select(runs.c.id).where(touched).order_by(runs.c.id).with_for_update(key_share=True)
    )
    revision = runs.c.revision + 1
    # The verdict of a run that is not examined again stays current.
    stays = and_(~again, runs.c.examined == runs.c.revision)
    examined = case((stays, revision), else_=runs.c.examined)
    connection.execute(update(runs).where(touched).values(revision=revision, examined=examined))
    concerned = list(connection.scalars(select(runs.c.id).where(again)))
    ids = [row.id for row in rows]
    connection.execute(update(assertions).where(_A.id.in_(ids)).values(ended_at=now))
    return concerned
