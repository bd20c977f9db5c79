"""What can be done with rules, for the API and the page alike; errors are those of the contract, answers plain JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ..alerts.presets import PRESETS, SETS
from ..alerts.rule_facts import terms_of
from ..alerts.rule_fields import WrongField, changed_rule, new_rules
from ..errors import Conflict, InvalidField, NotFound
from ..store import assertions
from ..store.assertions import Firing, Rule, SameRule, Source, Terms, TooManyRules
from ..store.runs import iso
from .rules_view import Refused, RulesSection, rules_section
from .services import Services

_PRESET_FIELDS: Final = (
    "name", "series", "measure", "above", "below", "hold", "grace", "advice",
)  # fmt: skip


def add(use: Services, given: Mapping[str, Any], source: Source) -> list[Rule]:
    with _told():
        return assertions.add_rules(use.engine, new_rules(given), source, time.time())


def get(use: Services, rule_id: int) -> Rule:
    return _found(rule_id, assertions.get_rule(use.engine, rule_id))


def change(use: Services, rule_id: int, given: Mapping[str, Any]) -> Rule:
    before = _of_people(get(use, rule_id))
    with _told():
        return _found(
            rule_id, assertions.change_rule(use.engine, rule_id, changed_rule(before, given))
        )


def remove(use: Services, rule_id: int) -> None:
    _of_people(get(use, rule_id))
    assertions.remove_rule(use.engine, rule_id)


def to_json(use: Services, found: Sequence[Rule]) -> list[dict[str, Any]]:
    firing = assertions.firing(use.engine, [rule.id for rule in found])
    return [_plain(rule, firing.get(rule.id, ())) for rule in found]


def presets_to_json() -> list[dict[str, Any]]:
    return [
        {
            "preset": name,
            "title": preset.title,
            "about": preset.about,
            "rules": [_plain_preset(each, PRESETS[each]) for each in preset.names],
        }
        for name, preset in SETS.items()
    ]


def section(use: Services, refused: Refused | None = None) -> RulesSection:
    """The context of ``_rules.html``; ``refused`` is a form that was sent and not taken, to be shown again."""
    found = assertions.list_rules(use.engine)
    return rules_section(found, assertions.firing(use.engine, [rule.id for rule in found]), refused)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except WrongField as error:
        raise InvalidField(error.field, error.value, error.why) from error
    except SameRule as error:
        number = error.args[0]
        raise Conflict(
            "rule_exists",
            f"rule {number} says the same; change it with PATCH /api/v1/rules/{number}",
            {"rule": number},
        ) from error
    except TooManyRules as error:
        raise Conflict("too_many_rules", str(error)) from error


def _found(rule_id: int, rule: Rule | None) -> Rule:
    if rule is None:
        raise NotFound("rule_not_found", f"there is no rule {rule_id}", {"rule": rule_id})
    return rule


def _of_people(rule: Rule) -> Rule:
    if rule.source == assertions.FILE:
        raise Conflict(
            "rule_of_file",
            f"rule {rule.id} comes from the file in LEAKLINE_RULES; change it there and start the server again",
            {"rule": rule.id},
        )
    return rule


def _plain(rule: Rule, firing: Sequence[Firing]) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "project": rule.project,
        "run": rule.run,
        **terms_of(rule),
        "advice": rule.advice,
        "enabled": rule.enabled,
        "source": rule.source,
        "created_at": iso(rule.created_at),
        "firing": [
            {
                "run": each.run,
                "project": each.project,
                "name": each.name,
                "generation": each.generation,
                "value": each.value,
                "since": iso(each.changed_at),
            }
            for each in firing
        ],
    }


def _plain_preset(preset: str, terms: Terms) -> dict[str, Any]:
    return {"preset": preset, **{name: getattr(terms, name) for name in _PRESET_FIELDS}}
