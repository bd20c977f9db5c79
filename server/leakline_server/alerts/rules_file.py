"""The file of rules (LEAKLINE_RULES), read when the server starts: TOML, one ``[[rule]]`` table for each.

    [[rule]]
    name = "Host memory"              # a rule keeps its number and what it said as long as it keeps its name
    series = "process.rss_bytes"
    above = "50 GB"

    [[rule]]
    preset = "tensors"                # the rules of a preset, here for one project
    project = "erl-trading"

Names and values are those of the API.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ..limits import MAX_RULES
from ..store.assertions import Terms
from .rule_fields import NewRule, WrongField, check_fields, new_rules


def read_rules(path: Path) -> tuple[Terms, ...]:
    """Return the rules of the file. Raises ValueError with one line: which rule, which field, what is wrong with it."""
    found: dict[str, Terms] = {}
    for number, table in enumerate(_tables(path), 1):
        name = table.get("name") or table.get("preset")
        # As Python writes it: a name may hold a line break, and the message is one line.
        label = f"rule {number}" + (f" {name[:100]!r}" if isinstance(name, str) else "")
        try:
            rules = new_rules(check_fields(NewRule, table))
        except WrongField as error:
            raise ValueError(f"{label}: {error}") from error
        for rule in rules:
            if rule.name in found:
                raise ValueError(f"{label}: name={rule.name!r} is that of a rule before it")
            found[rule.name] = rule
    if len(found) > MAX_RULES:
        raise ValueError(f"has {len(found)} rules; at most {MAX_RULES} are kept")
    return tuple(found.values())


def _tables(path: Path) -> list[dict[str, Any]]:
    try:
        parsed = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"is not TOML: {error}") from error
    tables = parsed.pop("rule", [])
    if parsed:
        other = next(iter(parsed))
        raise ValueError(f"{other!r} is nothing a file of rules has; it has [[rule]] tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("rule must be a list of tables, each begun with [[rule]]")
    return tables
