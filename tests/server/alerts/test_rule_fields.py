"""Rules as people write them in the API, on the page or in a file: accepted as intended, or refused by field."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from leakline_server.alerts.rules import rule_fields
from leakline_server.alerts.rules.rule_fields import (
    NewRule,
    RuleChanges,
    WrongField,
    changed_rule,
    check_fields,
    read_rules,
)
from leakline_server.alerts.rules.rule_fields import new_rules as rules_from
from leakline_server.alerts.rules.rule_presets import PRESETS, SETS
from leakline_server.config import WrongSettings, from_environment
from leakline_server.store.alerts.assertions import Rule, Terms


def new_rules(given: dict[str, Any]) -> list[Terms]:
    return rules_from(check_fields(NewRule, given))


def one(**given: Any) -> Terms:
    (rule,) = new_rules({"series": "gauge.queue", "above": 50, **given})
    return rule


def test_a_series_and_a_limit_make_a_rule() -> None:
    assert one() == Terms("gauge.queue above 50", "gauge.queue", above=50.0)
    assert one(measure="rate", below=-1).name == "rate of gauge.queue above 50 or below -1"
    (left,) = new_rules({"measure": "forecast", "below": 5})
    assert (left.name, left.series) == ("Fewer than 5 generations left until the limit", "")


@pytest.mark.parametrize(
    ("limit", "number"),
    [("20 GB", 20e9), ("500 MiB", 500 * 2**20), ("1.5GB", 1.5e9), ("-3", -3.0), ("0.25", 0.25), (7, 7.0)],
)  # fmt: skip
def test_a_limit_is_a_number_or_a_size(limit: Any, number: float) -> None:
    assert one(above=limit).above == number
    assert one(below="").below is None


WRONG: dict[str, list[Any]] = {
    "above": [None, "lots", "nan", True, 10**400, [1]],
    "series": ["", "a\nb", "x" * 513],
    "name": [5, "\x1b[31m"],
    "project": ["x" * 257],
    "measure": ["mean"],
    "hold": [0, True],
    "grace": [129],
    "enabled": [1],
    "advice": ["x" * 1001],
    "abov": [1],
    "preset": ["tensor", ["tensors"]],
}
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"above": 1, "below": 2}, "above"),
    ({"measure": "forecast"}, "series"),
    ({"measure": "forecast", "series": None}, "below"),
    ({"measure": "forecast", "series": None, "above": None, "below": 0}, "below"),
]


@pytest.mark.parametrize(
    ("given", "field"),
    [*(({field: value}, field) for field, values in WRONG.items() for value in values), *TOGETHER],
    ids=str,
)
def test_an_invalid_rule_is_refused_with_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(WrongField) as caught:
        one(**given)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_advice_of_several_lines_becomes_one_line() -> None:
    assert one(advice="first\n  then").advice == "first then"


@pytest.mark.parametrize("name", [*SETS, *PRESETS])
def test_every_preset_makes_its_rules(name: str) -> None:
    rules = new_rules({"preset": name, "project": "erl"})
    assert [rule.name for rule in rules] == [
        PRESETS[each].name for each in (SETS[name].rules if name in SETS else (name,))
    ]
    for rule in rules:
        assert rule.project == "erl"
        assert rule.advice
        # A preset can also be written out by hand.
        assert new_rules(asdict(rule)) == [rule]


def test_fields_given_with_a_preset_override_it() -> None:
    (high,) = new_rules(
        {"preset": "tensors.high", "series": "tfjs.tensors", "above": 300, "hold": 2}
    )
    assert (high.series, high.above, high.hold) == ("tfjs.tensors", 300.0, 2)
    named = new_rules({"preset": "tensors", "name": "mine"})
    assert [rule.name for rule in named] == [
        "mine: Tensors elevated", "mine: Tensors high", "mine: Tensors critical",
    ]  # fmt: skip
    with pytest.raises(WrongField, match=r"tensors\.high"):
        new_rules({"preset": "tensors", "above": 5})


def test_a_change_leaves_the_other_fields_as_they_are() -> None:
    rule = Rule(
        "queue", "gauge.queue", above=50.0, project="erl", id=1, source="api", created_at=0.0
    )
    assert changed_rule(rule, RuleChanges(above=60, project=None)) == Terms(
        "queue", "gauge.queue", above=60.0
    )
    with pytest.raises(WrongField) as caught:
        changed_rule(rule, RuleChanges(above=None))
    assert caught.value.field == "above"


def read(tmp_path: Path, text: str | bytes) -> tuple[Terms, ...]:
    path = tmp_path / "rules.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_rules(path)


def test_a_file_contains_rules_and_presets(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '[[rule]]\nname = "Host"\nseries = "process.rss_bytes"\nabove = "50 GB"\n'
        '[[rule]]\npreset = "tensors"\n[[rule]]\npreset = "gpu.memory"\nabove = "10 GB"\nenabled = false\n',
    )
    assert [rule.name for rule in found] == [
        "Host", "Tensors elevated", "Tensors high", "Tensors critical", "GPU memory",
    ]  # fmt: skip
    assert (found[0].above, found[-1].above, found[-1].enabled) == (50e9, 10e9, False)
    assert read(tmp_path, "# none yet\n") == ()
    (unnamed,) = read(tmp_path, '[[rule]]\nname = ""\nproject = ""\nseries = "a"\nabove = 1')
    assert (unnamed.name, unnamed.project) == ("a above 1", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]\n", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        ('rule = "x"', r"each starting with \[\[rule\]\]"),
        ("rule = [1]", r"each starting with \[\[rule\]\]"),
        ('[[rules]]\nname = "x"', r"'rules' is not allowed .* \[\[rule\]\]"),
        ('[[rule]]\nname = "x"\nabove = 1', "rule 1 'x': series=None must be the name"),
        ('[[rule]]\nname = "x\\ny"\nseries = "a"\nabove = 1', r"rule 1 'x\\ny': name='x\\ny' must not contain"),
        ('[[rule]]\nseries = "a"\nabove = "lots"', "rule 1: above='lots' must be a number, or a size"),
        ('[[rule]]\nseries = "a"\nabove = 1\nhold = 0', "hold=0 must be a whole number from 1 to 128"),
        ("#" * 1_000_001, "has more than 1000000 bytes"),
        ('[[rule]]\npreset = "gpu"\nhol = 2', "rule 1 'gpu': hol=2 is not a field of a rule; available: name,"),
        ('[[rule]]\npreset = "gpu"\n[[rule]]\npreset = "gpu"', "name='GPU memory' is already used by an earlier rule"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_one_line_naming_rule_and_field(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(WrongSettings, match=r"LEAKLINE_RULES=.*nothing\.toml.*cannot be read"):
        from_environment({"LEAKLINE_RULES": str(tmp_path / "nothing.toml")})
    with pytest.raises(ValueError, match="has 600 rules"):
        read(
            tmp_path,
            "".join(f'[[rule]]\nname = "r{n}"\nseries = "a"\nabove = 1\n' for n in range(600)),
        )
    (tmp_path / "wrong.toml").write_text('[[rule]]\nname = "Host"\nseries = "a"\nabove = "much"\n')
    with pytest.raises(WrongSettings, match=r"LEAKLINE_RULES=.*rule 1 'Host'.*above='much'"):
        from_environment({"LEAKLINE_RULES": str(tmp_path / "wrong.toml")})
    with pytest.raises(ValueError, match="cannot be read"):
        read_rules(tmp_path)


def test_the_file_in_the_docstring_is_valid(tmp_path: Path) -> None:
    lines = [line[4:] for line in str(rule_fields.__doc__).splitlines() if line.startswith("    ")]
    found = read(tmp_path, "\n".join(lines))
    assert len(found) == 4
    assert found[1:] == tuple(rules_from(NewRule(preset="tensors", project="erl-trading")))
