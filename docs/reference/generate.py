"""Write docs/reference from the code: series, commands, Python and HTTP. Tests check that the pages are up to date.

example: make docs
         python docs/reference/generate.py --check
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from series_names import FAMILIES, Name

FOLDER: Final = Path(__file__).parent
METHODS: Final = ("get", "post", "put", "patch", "delete")
Json = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page differs"
    )
    options = parser.parse_args()
    stale = []
    for name, write in PAGES.items():
        path, text = FOLDER / name, write()
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if not options.check:
                path.write_text(text)
    print(f"changed: {', '.join(stale)}" if stale else "nothing changed")
    return 1 if stale and options.check else 0


# -- series ---------------------------------------------------------------------------------------


def series() -> str:
    lines = [
        "# Series names",
        "",
        "A series is the history of one metric. Angle brackets mark the parts of a name that depend on the program.",
        "Sizes are in bytes and times in seconds; everything else is a count unless the table says otherwise.",
        "A value that was not measured is missing, not zero.",
    ]
    for heading, (when, names) in FAMILIES.items():
        lines += ["", f"## {heading}", "", when, "", "|series|meaning|", "|---|---|"]
        lines += [f"|`{name.pattern}`|{name.meaning}{_unit(name)}|" for name in names]
    return "\n".join(lines) + "\n"


def _unit(name: Name) -> str:
    return "" if name.unit in ("bytes", "seconds", "count") else f" ({name.unit})"


# -- commands -------------------------------------------------------------------------------------


def commands() -> str:
    from leakline.cli import COMMANDS, load_command

    lines = [
        "# Commands and options",
        "",
        "For an overview, see [the command line](../run.md). `leakline COMMAND --help` prints the same text.",
    ]
    parsers = {command: _parser_of(load_command(command), command) for command in COMMANDS}
    every = [option for parser in parsers.values() for option in _all_options(parser)]
    common = _common(every)
    lines += ["", "## Common options", "", *common]
    for command, parser in parsers.items():
        lines += ["", f"## leakline {command}", "", *_explained(parser.description or "")]
        lines += _options(parser, common)
        for name, child in _children(parser):
            lines += ["", f"### leakline {command} {name}", *_options(child, common)]
    return "\n".join(lines) + "\n"


def _parser_of(module: Any, command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"leakline {command}", add_help=False, description=module.help
    )
    module.configure(parser)
    return parser


def _common(options: Iterable[str]) -> list[str]:
    """Return the options with the same meaning in several commands, one for each name."""
    found: dict[str, str] = {}
    for option, times in Counter(options).most_common():
        if times > 1 and option.startswith("- `--"):
            found.setdefault(_name_of(option), option)
    return sorted(found.values())


def _name_of(option: str) -> str:
    return re.split(r"[ `]", option.removeprefix("- `"))[0]


def _explained(text: str) -> list[str]:
    """Return a command's description, with its examples as a code block."""
    description, _, examples = inspect.cleandoc(text).partition("\nexample:")
    lines = [_escaped(line) for line in description.strip().splitlines()]
    if examples:
        lines += ["", "```sh", *(line.strip() for line in examples.strip().splitlines()), "```"]
    return lines


def _options(parser: argparse.ArgumentParser, common: Sequence[str]) -> list[str]:
    """Return the options as a list, then the names of those that are described elsewhere."""
    items = list(_options_of(parser))
    own = [item for item in items if item not in common]
    shared = [f"`{_name_of(item)}`" for item in items if item in common]
    lines = ["", *own] if own else []
    return [*lines, "", f"Common options: {', '.join(shared)}."] if shared else lines


def _all_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from _options_of(parser)
    for _, child in _children(parser):
        yield from _all_options(child)


def _options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if (
            not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
            and action.help != argparse.SUPPRESS
        ):
            words = _in_line(_help(action))
            yield f"- {_spelled(action)}: {words}" if words else f"- {_spelled(action)}"


def _spelled(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        plain = action.metavar or (
            action.dest if not action.option_strings else action.dest.upper()
        )
        value = " ".join(plain) if isinstance(plain, tuple) else plain
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(
        f"`{option}{' ' + value if value else ''}`" for option in action.option_strings
    )


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    if action.choices is not None:
        choices = ", ".join(f"`{choice}`" for choice in action.choices)
        text = f"{text}: {choices}" if text else choices
    return text


def _children(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


# -- Python ---------------------------------------------------------------------------------------


def python() -> str:
    import leakline

    lines = [
        "# Python API",
        "",
        "After `init`, a call raises only if an argument is invalid, and only where its description says so. "
        "Exceptions in your own `on` callbacks also propagate.",
        "",
        *_member("leakline.init", leakline.init),
        *_member("leakline.auto", leakline.auto),
        *_member("leakline.current", leakline.current),
    ]
    aliases = []
    for name in sorted(vars(leakline.Run)):
        member = inspect.getattr_static(leakline.Run, name)
        if name.startswith("_") or not member.__doc__:
            continue
        if "same as `generation`" in member.__doc__:
            aliases.append(f"`run.{name}`")
        else:
            lines += _member(f"run.{name}", member)
    at = lines.index("## `run.generation`") + 7
    lines.insert(at, f"{', '.join(aliases[:-1])} and {aliases[-1]} do the same.")
    for error in (leakline.LeaklineError, leakline.BadArgument):
        lines += [f"## `leakline.{error.__name__}`", "", *_prose(error.__doc__ or ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def _member(name: str, member: Any) -> list[str]:
    if isinstance(member, property):
        return [f"## `{name}`", "", *_prose(member.__doc__ or ""), ""]
    call = f"{name}({', '.join(_parameters(member))})"
    return [f"## `{name}`", "", "```python", call, "```", "", *_prose(member.__doc__ or ""), ""]


def _parameters(function: Any) -> Iterator[str]:
    has_star = False
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield each.name if each.default is each.empty else f"{each.name}={each.default!r}"


def _prose(text: str) -> list[str]:
    return [_escaped(line.replace("``", "`")) for line in inspect.cleandoc(text).splitlines()]


# -- HTTP -----------------------------------------------------------------------------------------


def api() -> str:
    described = _openapi()
    lines = [
        "# HTTP API",
        "",
        "`GET /api/v1/openapi.json` describes the API of your server in full, with the shape of each body and answer.",
        'Errors are JSON: `{"error": {"code", "message", "details"}}`. Lists are `{"items", "next"}`: to get the next',
        "page, send `next` as `cursor`.",
        "",
        "With [authentication](../access.md), requests need a token:",
        "",
        "- `add`: an ingest token of the project",
        "- `read`: a read token",
        "- `see`: a read token, or a share link of the run",
        "- `change`: an admin token, which is also valid for all other requests",
    ]
    for tag, rows in sorted(_by_tag(described).items()):
        lines += ["", f"## {tag.capitalize()}", ""]
        for method, path, operation in rows:
            lines += _operation(method, path, operation, described)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _openapi() -> Json:
    from leakline_server.app import create_app
    from leakline_server.config import Config

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Config(database_url=f"sqlite:///{folder}/leakline.db"))
        described = app.openapi()
        app.state.services.engine.dispose()
        return described


def _by_tag(described: Json) -> dict[str, list[tuple[str, str, Json]]]:
    found: dict[str, list[tuple[str, str, Json]]] = {}
    for path, methods in sorted(described["paths"].items()):
        for method in METHODS:
            if method in methods:
                tag = (methods[method].get("tags") or ["server"])[0]
                found.setdefault(tag, []).append((method, path, methods[method]))
    return found


def _operation(method: str, path: str, operation: Json, described: Json) -> list[str]:
    lines = [f"### {method.upper()} {_escaped(path)}", ""]
    text = operation.get("description", "")
    needs = ""
    if "security" in operation:
        # The last paragraph spells out the scope.
        text = text.rpartition("\n\n")[0]
        needs = f" Requires `{operation['security'][0]['token'][0]}`."
    lines += [f"{_escaped(operation['summary'])}.{needs}", "", *_prose(text), ""]
    given = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    for place in dict.fromkeys(each["in"] for each in given):
        fields = [_field(each["name"], each, described) for each in given if each["in"] == place]
        lines += [f"{place.capitalize()}: {', '.join(fields)}.", ""]
    fields = [_field(name, shape, described) for name, shape in _body(operation, described)]
    return [*lines, f"Body: {', '.join(fields)}.", ""] if fields else lines


def _body(operation: Json, described: Json) -> Iterator[tuple[str, Json]]:
    content = (operation.get("requestBody") or {}).get("content", {})
    schema = _resolved(content.get("application/json", {}).get("schema", {}), described)
    yield from schema.get("properties", {}).items()


def _field(name: str, field: Json, described: Json) -> str:
    """Return a field with what is known of it: its description, or the type if that is not a string."""
    schema = _resolved(field.get("schema", field), described)
    options = [_resolved(each, described) for each in schema.get("anyOf", [schema])]
    options = [each for each in options if each.get("type") != "null"]
    values = [value for each in options for value in each.get("enum", ())]
    types = dict.fromkeys(str(each.get("type", "")) for each in options)
    shown = [f"`{value}`" for value in values] or [name for name in types if name in _TYPES_SHOWN]
    words = field.get("description") or ", ".join(shown)
    return f"`{name}` ({_in_line(words)})" if words else f"`{name}`"


_TYPES_SHOWN: Final = {"integer", "number", "boolean", "array", "object"}


def _resolved(schema: Json, described: Json) -> Json:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Json = described["components"]["schemas"].get(name, schema)
    return found


# -- words ----------------------------------------------------------------------------------------


def _escaped(line: str) -> str:
    """Escape angle brackets and stars outside code, which Markdown would read as HTML and emphasis."""
    parts = line.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(LEAKLINE_[A-Z_]+)", r"`\1`", re.sub(r"([<*])", r"\\\1", parts[at]))
    return "`".join(parts)


def _in_line(text: str) -> str:
    return _escaped(" ".join(text.replace("``", "`").split()))


PAGES: Final[dict[str, Callable[[], str]]] = {
    "series.md": series,
    "commands.md": commands,
    "python.md": python,
    "api.md": api,
}

if __name__ == "__main__":
    sys.exit(main())
