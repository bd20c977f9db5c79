"""Rules -> the context of ``_rules.html``, the section of ``/alerts`` that shows and sets them. Pure.

The page that includes it has one field for it, ``rules``, made by `rule_actions.section(use)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from ..alerts.presets import SETS
from ..alerts.rule_facts import amount, condition
from ..store.assertions import Firing, Rule
from . import formats

FORM_FIELDS: Final = (
    "name", "series", "measure", "above", "below", "project", "run", "hold", "grace", "advice",
)  # fmt: skip
# What a rule may be about, offered while somebody types.
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
    """A form that was not taken: of this rule, or of a new one where it is None."""

    rule: int | None
    fields: Mapping[str, str]
    message: str


@dataclass(frozen=True, slots=True)
class MeasureChoice:
    value: str
    word: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RuleForm:
    """The fields as texts. ``key`` sets the ids of one form apart from those of the others."""

    key: str
    action: str
    name: str
    series: str
    measures: tuple[MeasureChoice, ...]
    above: str
    below: str
    project: str
    run: str
    hold: str
    grace: str
    advice: str
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
    """``form`` changes it; None for a rule of the file. ``opened``: that form has just been refused."""

    id: int
    name: str
    condition: str
    scope: str
    advice: str
    source: str
    enabled: bool
    status: str
    word: str
    firing: tuple[FiringRow, ...]
    form: RuleForm | None
    opened: bool


@dataclass(frozen=True, slots=True)
class PresetRow:
    preset: str
    title: str
    about: str


@dataclass(frozen=True, slots=True)
class RulesSection:
    """``_rules.html``. ``error`` is of a new rule, and ``opened`` shows its form."""

    rows: tuple[RuleRow, ...]
    form: RuleForm
    opened: bool
    presets: tuple[PresetRow, ...]
    error: str
    series: tuple[str, ...]


def rules_section(
    rules: Sequence[Rule], firing: Mapping[int, Sequence[Firing]], refused: Refused | None = None
) -> RulesSection:
    of_new = refused if refused is not None and refused.rule is None else None
    by_preset = of_new is not None and "preset" in of_new.fields
    return RulesSection(
        rows=tuple(_row(rule, firing.get(rule.id, ()), refused) for rule in rules),
        form=_new_form(None if by_preset else of_new),
        opened=of_new is not None and not by_preset,
        presets=tuple(PresetRow(name, each.title, each.about) for name, each in SETS.items()),
        error=of_new.message if of_new is not None and by_preset else "",
        series=SERIES,
    )


def _row(rule: Rule, firing: Sequence[Firing], refused: Refused | None) -> RuleRow:
    wrong = refused if refused is not None and refused.rule == rule.id else None
    status, word = _standing(rule, firing)
    return RuleRow(
        id=rule.id,
        name=rule.name,
        condition=condition(rule, "generation"),
        scope=_scope(rule),
        advice=rule.advice,
        source=_SOURCES.get(rule.source, rule.source),
        enabled=rule.enabled,
        status=status,
        word=word,
        firing=tuple(_firing(rule, each) for each in firing),
        form=None if rule.source == "file" else _form_of(rule, wrong),
        opened=wrong is not None,
    )


def _standing(rule: Rule, firing: Sequence[Firing]) -> tuple[str, str]:
    """(the status whose colour it wears, a word)."""
    if not rule.enabled:
        return "learning", "paused"
    return ("suspected", "fires") if firing else ("ok", "quiet")


def _scope(rule: Rule) -> str:
    if rule.run is not None:
        return f"run {rule.run}" + (f" of {rule.project}" if rule.project is not None else "")
    return "all runs" if rule.project is None else f"all runs of {rule.project}"


def _firing(rule: Rule, found: Firing) -> FiringRow:
    value = "" if found.value is None else amount(rule, found.value)
    at = formats.moment(found.changed_at)
    return FiringRow(
        href=f"/runs/{quote(found.run, safe='')}",
        label=f"{found.project}/{found.name}",
        value=value,
        since=at,
        clock=formats.clock(at),
    )


def _new_form(refused: Refused | None) -> RuleForm:
    fields = {"hold": "1", "grace": "3"} if refused is None else refused.fields
    return _form("new", "/alerts/rules", fields, refused)


def _form_of(rule: Rule, refused: Refused | None) -> RuleForm:
    own = {
        "name": rule.name,
        "series": rule.series,
        "measure": rule.measure,
        "above": _exact(rule.above),
        "below": _exact(rule.below),
        "project": rule.project or "",
        "run": rule.run or "",
        "hold": str(rule.hold),
        "grace": str(rule.grace),
        "advice": rule.advice,
    }
    fields = own if refused is None else refused.fields
    return _form(f"rule-{rule.id}", f"/alerts/rules/{rule.id}", fields, refused)


def _form(key: str, action: str, fields: Mapping[str, str], refused: Refused | None) -> RuleForm:
    texts = {name: fields.get(name, "") for name in FORM_FIELDS if name != "measure"}
    chosen = fields.get("measure", "value")
    return RuleForm(
        key=key,
        action=action,
        measures=tuple(MeasureChoice(n, word, n == chosen) for n, word in _MEASURES.items()),
        error="" if refused is None else refused.message,
        **texts,
    )


def _exact(limit: float | None) -> str:
    if limit is None:
        return ""
    return f"{limit:.0f}" if limit.is_integer() else repr(limit)
