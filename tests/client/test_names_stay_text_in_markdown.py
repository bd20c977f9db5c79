"""What a training calls its things means nothing in a report: read back by a reader of CommonMark with tables."""

from __future__ import annotations

import re
from typing import Any

import pytest
from markdown_it import MarkdownIt
from tests.browser.hostile_labels import LABELS

from leakline.markup import bullets, code, escape, one_line, table

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![x](https://evil.example/x.png)",
    "a | b | c",
    "`tick` and ``two``",
    "back\\slash \\| bar",
    "**bold** __init__ _a_ *b* ~~gone~~",
    "first\nsecond\r\n# heading\n\n- point",
    "# heading",
    "- point",
    "1. point",
    "2) point",
    "> quote",
    "=== rule",
    "--- rule",
    "&lt;b&gt; &amp; &#60;",
    "trailing \\",
    "\u202eturned round\u202c",
    "$x$ and <https://evil.example>",
    "[label]: https://evil.example",
    "thanks @octocat and @github/security",
    "`@octocat`",
    *LABELS,
)
PLAIN = (
    "evaluate_population keeps 16 TradingEnvironment per generation: 6.88 GiB since generation 1",
    "torch 2.13.0 -> 2.13.1",
    "erl-trading",
)


def parsed(text: str) -> list[Any]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def shown(text: str) -> str:
    """What a reader sees; anything but text, code spans and the frame around them fails."""
    said = []
    for token in parsed(text):
        for part in token.children or ():
            assert part.type in ("text", "text_special", "code_inline"), part.type
            # What keeps a name from calling somebody is not seen.
            said.append(part.content.replace("@\u2060", "@"))
    return "".join(said)


def frames(text: str) -> list[str]:
    return [token.type for token in parsed(text)]


@pytest.mark.parametrize("name", (*HOSTILE, *PLAIN))
@pytest.mark.parametrize("write", (escape, code))
def test_a_name_is_shown_as_it_is_and_makes_nothing(write: Any, name: str) -> None:
    assert frames(write(name)) == ["paragraph_open", "inline", "paragraph_close"]
    assert shown(write(name)) == one_line(name)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("write", (escape, code))
def test_a_name_in_a_table_stays_in_its_cell(write: Any, name: str) -> None:
    text = "\n".join(table(("name", "#count"), [(write(name), "7"), (write("next"), "8")]))
    cells = [token.content for token in parsed(text) if token.type == "inline"]
    assert len(cells) == 6
    assert (cells[0], cells[1], cells[3], cells[5]) == ("name", "count", "7", "8")
    assert shown(text) == f"namecount{one_line(name)}7next8"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_a_list_is_one_point_of_it(name: str) -> None:
    text = "\n".join(bullets([name, f"   {name}"]))
    assert frames(text).count("list_item_open") == 2
    assert shown(text) == one_line(name) * 2


@pytest.mark.parametrize("name", PLAIN)
def test_what_reads_well_as_text_is_left_as_it_is(name: str) -> None:
    assert escape(name) == name


@pytest.mark.parametrize(
    "name", ("https://evil.example", "see www.evil.example", "WWW.evil.example")
)
def test_nobody_makes_a_link_of_an_address_by_himself(name: str) -> None:
    assert "://" not in escape(name) and "www." not in escape(name).lower()
    assert shown(escape(name)) == name


@pytest.mark.parametrize(
    "name", ("@octocat", "by @octocat: done", "`@octocat`", "(@github/security)")
)
@pytest.mark.parametrize("write", (escape, code))
def test_a_name_that_is_pasted_calls_nobody(write: Any, name: str) -> None:
    """As GitHub finds them: in what is shown, but in no code span."""
    told = (part for token in parsed(write(name)) for part in token.children or ())
    text = "".join(part.content for part in told if part.type != "code_inline")
    assert not re.search(r"(?:^|\W)@[A-Za-z0-9]", text)


def test_an_address_of_mail_reads_as_it_is() -> None:
    assert shown(escape("me@example.org, a @ b")) == "me@example.org, a @ b"


def test_no_name_at_all_is_a_dash() -> None:
    assert code("") == code("\n") == "–"


def test_a_table_without_rows_is_nothing() -> None:
    assert list(table(("a", "b"), [])) == []
