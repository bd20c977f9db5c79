"""The template context of ``_rules.html``, the section of ``/alerts`` that shows and edits rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from ...alerts.rules.rule_facts import amount, condition
from ...alerts.rules.rule_presets import SETS, PresetSet
from ...store.alerts import assertions
from ...store.alerts.assertions import Rule
from ...store.engine import Engine
from ..rendering import number_formats

Json = Mapping[str, Any]
FORM_FIELDS: Final = (
    "name", "series", "measure", "above", "below", "project", "run", "hold", "grace", "advice",
)  # fmt: skip
# Series that are suggested while a user types.
SERIES: Final = (
    "process.rss_bytes", "process.anon_bytes", "process.peak_bytes", "process.threads", "process.open_files",
    "children.count", "cgroup.used_bytes", "cuda.*.allocated_bytes", "cuda.*.reserved_bytes", "gpu.*.used_bytes",
    "python.objects", "tensors.count", "tensors.bytes", "arrays.bytes", "type.*.count", "tracked.*.length", "gauge.*",
    "figures.open", "tfjs.tensors", "generation.seconds", "phase.*.bytes", "phase.*.seconds", "client.seconds",
)  # fmt: skip
_MEASURES: Final = {
    "value": "reading",
    "rate": "change per generation",
    "forecast": "generations left",
}
_SOURCES: Final = {"api": "from the API", "page": "", "file": "from the file"}


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejected form; ``rule`` is None if the form was for a new rule."""

    rule: int | None
    fields: Mapping[str, str]
    message: str


@dataclass(frozen=True, slots=True)
class RuleForm:
    """A form for a rule; ``key`` makes the ids of the form's elements unique."""

    key: str
    action: str
    fields: Mapping[str, str]
    error: str


@dataclass(frozen=True, slots=True)
class FiringRow:
    href: str
    label: str
    value: str
    since: str
    clock: str


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule. ``form`` edits the rule, and is None for a rule from the file.

    ``opened`` is True if the form has just been rejected.
    """

    rule: Rule
    condition: str
    scope: str
    source: str
    status: str
    word: str
    firing: tuple[FiringRow, ...]
    form: RuleForm | None
    opened: bool


@dataclass(frozen=True, slots=True)
class RulesSection:
    """The template context of ``_rules.html``.

    ``error`` explains why a preset was rejected; ``opened`` is True if the form for a new rule is
    shown.
    """

    rows: tuple[RuleRow, ...]
    form: RuleForm
    opened: bool
    error: str
    presets: Mapping[str, PresetSet] = field(default_factory=lambda: SETS)
    series: tuple[str, ...] = SERIES
    measures: Mapping[str, str] = field(default_factory=lambda: _MEASURES)


def rules_section(engine: Engine, refused: Refused | None) -> RulesSection:
    """Return the section; ``refused`` is a rejected form to show again."""
    rules = assertions.list_rules(engine)
    firing = assertions.firing(engine, [rule.id for rule in rules])
    of_new = refused if refused is not None and refused.rule is None else None
    by_preset = of_new is not None and "preset" in of_new.fields
    return RulesSection(
        rows=tuple(_row(rule, firing.get(rule.id, ()), refused) for rule in rules),
        form=_form("new", "", {"hold": "1", "grace": "3"}, None if by_preset else of_new),
        opened=of_new is not None and not by_preset,
        error=of_new.message if of_new is not None and by_preset else "",
    )


def _row(rule: Rule, firing: Sequence[Json], refused: Refused | None) -> RuleRow:
    wrong = refused if refused is not None and refused.rule == rule.id else None
    status, word = _standing(rule, firing)
    own = {name: _text(getattr(rule, name)) for name in FORM_FIELDS}
    return RuleRow(
        rule=rule,
        condition=condition(rule, "generation"),
        scope=_scope(rule),
        source=_SOURCES.get(rule.source, rule.source),
        status=status,
        word=word,
        firing=tuple(_firing(rule, each) for each in firing),
        form=None if rule.source == "file" else _form(f"rule-{rule.id}", f"/{rule.id}", own, wrong),
        opened=wrong is not None,
    )


def _standing(rule: Rule, firing: Sequence[Json]) -> tuple[str, str]:
    """Return the status that determines a rule's colour, and the rule's label."""
    if not rule.enabled:
        return "learning", "paused"
    return ("suspected", "fires") if firing else ("ok", "quiet")


def _scope(rule: Rule) -> str:
    if rule.run is not None:
        return f"run {rule.run}" + (f" of {rule.project}" if rule.project is not None else "")
    return "all runs" if rule.project is None else f"all runs of {rule.project}"


def _firing(rule: Rule, found: Json) -> FiringRow:
    at = number_formats.moment(found["since"])
    return FiringRow(
        href=f"/runs/{quote(found['run'], safe='')}",
        label=f"{found['project']}/{found['name']}",
        value="" if found["value"] is None else amount(rule, found["value"]),
        since=at,
        clock=number_formats.clock(at),
    )


def _form(key: str, path: str, own: Mapping[str, str], refused: Refused | None) -> RuleForm:
    fields = {**dict.fromkeys(FORM_FIELDS, ""), **(own if refused is None else refused.fields)}
    return RuleForm(key, f"/alerts/rules{path}", fields, "" if refused is None else refused.message)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else repr(value)
    return "" if value is None else str(value)
