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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..limits import MAX_RULES
from ..store.assertions import Terms
from .rule_fields import NewRule, WrongField, check_fields, new_rules

MAX_FILE_BYTES: Final = 1_000_000
_TABLES: Final = "rule"


def read_rules(path: Path) -> tuple[Terms, ...]:
    """The rules of the file. Raises ValueError with one line: which rule, which field, what is wrong with it."""
    found: list[Terms] = []
    for number, table in enumerate(_tables(path), 1):
        label = _label(number, table)
        if not isinstance(table, Mapping):
            raise ValueError(f"{label}: must be a table, [[{_TABLES}]]")
        try:
            rules = new_rules(check_fields(NewRule, table))
        except WrongField as error:
            raise ValueError(f"{label}: {error}") from error
        for rule in rules:
            if any(rule.name == other.name for other in found):
                raise ValueError(f"{label}: name={rule.name!r} is that of a rule before it")
            found.append(rule)
    if len(found) > MAX_RULES:
        raise ValueError(f"has {len(found)} rules; at most {MAX_RULES} are kept")
    return tuple(found)


def _tables(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"has more than {MAX_FILE_BYTES} bytes")
    try:
        parsed = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"is not TOML: {error}") from error
    tables = parsed.pop(_TABLES, [])
    if parsed:
        raise ValueError(
            f"{next(iter(parsed))!r} is nothing a file of rules has; it has [[{_TABLES}]] tables"
        )
    if not isinstance(tables, list):
        raise ValueError(f"{_TABLES} must be a list of tables, each begun with [[{_TABLES}]]")
    return tables


def _label(number: int, table: object) -> str:
    name = table.get("name") or table.get("preset") if isinstance(table, Mapping) else None
    # As Python writes it: a name may hold a line break, and the message is one line.
    return f"rule {number}" + (f" {name[:100]!r}" if isinstance(name, str) else "")
