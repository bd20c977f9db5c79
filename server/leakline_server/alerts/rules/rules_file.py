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
from typing import Any, Final

from ...limits import MAX_RULES
from ...store.alerts.assertions import Terms
from .rule_fields import NewRule, WrongField, check_fields, new_rules

MAX_FILE_BYTES: Final = 1_000_000


def read_rules(path: Path) -> tuple[Terms, ...]:
    """Return the rules of the file. Raises ValueError with one line: which rule, which field, what is wrong with it."""
    found: dict[str, Terms] = {}
    for number, table in enumerate(_tables(path), 1):
        name = table.get("name") or table.get("preset")
        # As Python writes it: a name may hold a line break, and the message is one line.
        label = f"rule {number}" + (f" {name[:100]!r}" if isinstance(name, str) else "")
        try:
            # An empty text is as good as none.
            given = {field: value for field, value in table.items() if value != ""}
            rules = new_rules(check_fields(NewRule, given))
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
    tables = parsed.pop("rule", [])
    if parsed:
        other = next(iter(parsed))
        raise ValueError(f"{other!r} is nothing a file of rules has; it has [[rule]] tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("rule must be a list of tables, each begun with [[rule]]")
    return tables
