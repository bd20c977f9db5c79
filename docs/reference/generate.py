"""Write the reference anew from the code: series, commands, Python, HTTP. `make docs` does; tests hold the pages to it.

example: make docs
         python docs/reference/generate.py --check
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from series_names import FAMILIES

FOLDER: Final = Path(__file__).parent
METHODS: Final = ("get", "post", "put", "patch", "delete")
Json = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where one differs"
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
        "The history of one reading is a series. These are all there are; a part in angle brackets stands for what the",
        "program brings with it. What is not known is absent, never zero. `make docs` writes this page from",
        "`docs/reference/series_names.py`, and a test holds that to what the probes give.",
    ]
    for heading, (when, names) in FAMILIES.items():
        lines += ["", f"## {heading}", "", *([when, ""] if when else [])]
        lines += ["| series | unit | is |", "| --- | --- | --- |"]
        lines += [f"| `{name.pattern}` | {name.unit} | {name.meaning} |" for name in names]
    return "\n".join(lines) + "\n"


# -- commands -------------------------------------------------------------------------------------


def commands() -> str:
    from leakline.cli import COMMANDS, load_command

    lines = [
        "# Every command and option",
        "",
        "As `leakline COMMAND --help` says it; `make docs` writes this page from the commands. For an overview, exit",
        "statuses and lines to copy see [the command line](../command-line.md).",
    ]
    for command in COMMANDS:
        found = load_command(command)
        parser = argparse.ArgumentParser(prog=f"leakline {command}", add_help=False)
        found.configure(parser)
        lines += ["", f"## leakline {command}", "", *_explained(found.help)]
        lines += _options(parser)
        for name, child in _children(parser):
            lines += ["", f"### leakline {command} {name}", "", *_options(child)]
    return "\n".join(lines) + "\n"


def _explained(text: str) -> list[str]:
    """What a command says of itself, its examples as lines to copy."""
    told, _, examples = inspect.cleandoc(text).partition("\nexample:")
    lines = [_escaped(line) for line in told.strip().splitlines()]
    if examples:
        lines += ["", "```sh", *(line.strip() for line in examples.strip().splitlines()), "```"]
    return lines


def _options(parser: argparse.ArgumentParser) -> list[str]:
    rows = [
        f"| {_spelled(action)} | {_cell(_help(action))} |"
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        and action.help != argparse.SUPPRESS
    ]
    return ["", "| argument | does |", "| --- | --- |", *rows] if rows else []


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
    told = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    if action.choices is not None:
        choices = ", ".join(f"`{choice}`" for choice in action.choices)
        told = f"{told}: {choices}" if told else choices
    return told


def _children(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


# -- Python ---------------------------------------------------------------------------------------


def python() -> str:
    import leakline

    lines = [
        "# Python: what a training calls",
        "",
        "Everything that is public, from the docstrings; `make docs` writes this page. After `init` nothing raises",
        "into the training but a wrong argument of a call that declares something.",
        "",
        *_told("leakline.init", leakline.init),
        *_told("leakline.current", leakline.current),
    ]
    for name in sorted(vars(leakline.Run)):
        member = inspect.getattr_static(leakline.Run, name)
        if not name.startswith("_") and member.__doc__:
            lines += _told(f"run.{name}", member)
    for error in (leakline.LeaklineError, leakline.BadArgument):
        lines += [f"## `leakline.{error.__name__}`", "", *_prose(error.__doc__ or ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def _told(name: str, member: Any) -> list[str]:
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
        "# The HTTP API",
        "",
        "Every server describes its API, with the shape of each body and answer, at `/api/v1/openapi.json` (OpenAPI).",
        "This is its table of contents, which `make docs` writes from the same description. Errors are JSON,",
        '`{"error": {"code", "message", "details"}}`; lists are `{"items", "next"}` and take `limit` and `cursor`.',
    ]
    for tag, rows in sorted(_by_tag(described).items()):
        lines += ["", f"## {tag.capitalize()}", ""]
        for method, path, told in rows:
            lines += _operation(method, path, told, described)
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


def _operation(method: str, path: str, told: Json, described: Json) -> list[str]:
    lines = [f"### {method.upper()} {_escaped(path)}", ""]
    summary = told.get("summary", "")
    lines += [_escaped(f"{summary}.") if summary else "", ""]
    if told.get("description"):
        lines += [*_prose(told["description"]), ""]
    rows = [
        f"| `{each['name']}` | {each['in']} | {_cell(each.get('description') or '–')} |"
        for each in told.get("parameters", ())
        if each["in"] != "path"
    ]
    rows += [
        f"| `{name}` | body | {_cell(words or '–')} |" for name, words in _body(told, described)
    ]
    if rows:
        lines += ["| field | in | is |", "| --- | --- | --- |", *rows, ""]
    return [line for at, line in enumerate(lines) if line or at == 0 or lines[at - 1]]


def _body(told: Json, described: Json) -> Iterator[tuple[str, str]]:
    content = (told.get("requestBody") or {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    schema = described["components"]["schemas"].get(name, schema)
    for field, shape in schema.get("properties", {}).items():
        yield field, shape.get("description", "")


# -- words ----------------------------------------------------------------------------------------


def _escaped(line: str) -> str:
    """Markdown reads a name in angle brackets as HTML, and stars as emphasis, but for what stands as code."""
    parts = line.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(LEAKLINE_[A-Z_]+)", r"`\1`", re.sub(r"([<*])", r"\\\1", parts[at]))
    return "`".join(parts)


def _cell(text: str) -> str:
    return _escaped(" ".join(text.replace("``", "`").split())).replace("|", "\\|")


PAGES: Final[dict[str, Callable[[], str]]] = {
    "series.md": series,
    "commands.md": commands,
    "python.md": python,
    "api.md": api,
}

if __name__ == "__main__":
    sys.exit(main())
