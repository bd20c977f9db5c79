"""The index names every document once, every link arrives, and the reference is what the code says."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

from leakline.series_names import FAMILIES, names
from leakline_server.web import documents
from leakline_server.web.markdown import ROOT as PREFIX
from leakline_server.web.markdown import anchor_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
CLIENT = ROOT / "agent_client" / "leakline"
# How a series begins; what follows in the code may be worked out.
FAMILY = "|".join(sorted({each.pattern.partition(".")[0] for each in names()}))
SERIES = re.compile(rf"(?:{FAMILY})\.(?:[a-z_]+|<x>)(?:\.(?:[a-z_]+|<x>))?")
# Rooms whose readings are sent.
GIVING = [
    *CLIENT.glob("probes/*.py"),
    *(CLIENT / f"{n}.py" for n in ("loop", "phases", "budget", "outside")),
]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "reference" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_index_names_every_document_once() -> None:
    text = (DOCS / "README.md").read_text()
    named = re.findall(r"\]\(([\w/.-]+\.md)\)", text)
    assert sorted(named) == [each for each in DOCUMENTS if each != "README.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_arrives_at_its_anchor(document: str) -> None:
    for target in re.findall(r'href="([^"]+)"', documents.read(document).body):
        path, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        assert path.startswith(PREFIX) or not path, target
        name = path.removeprefix(PREFIX).lstrip("/")
        leads = document if not path else documents.document_called(name)
        if leads is None:
            assert documents.file_of(name), f"{document} links to {target}"
        elif anchor:
            assert f'id="{anchor}"' in documents.read(leads).body, f"{document} links to {target}"


@pytest.mark.parametrize(
    "document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_anchors_of_the_papers_arrive_too(document: str) -> None:
    for target, anchor in re.findall(
        r"\]\(docs/([\w/.-]+\.md)#([\w-]+)\)", (ROOT / document).read_text()
    ):
        headings = re.findall(r"^#+ (.+)$", (DOCS / target).read_text(), re.M)
        assert anchor in [anchor_of(heading.replace("`", "")) for heading in headings], (
            target,
            anchor,
        )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_needs_html(document: str) -> None:
    """It would stand there as text where the server shows it."""
    text = re.sub(r"^<!-- [\w: -]+ -->\n", "", (DOCS / document).read_text(), flags=re.M)
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        inside = token.children or []
        found = [
            each.content for each in (token, *inside) if each.type in ("html_block", "html_inline")
        ]
        assert not found, f"{document}: {found}"


@pytest.mark.parametrize("page", ["series.md", "commands.md", "python.md", "api.md"])
def test_the_reference_is_what_the_code_says(page: str) -> None:
    made = generator()
    assert set(made.PAGES) == {path.name for path in (DOCS / "reference").glob("*.md")}
    assert (DOCS / "reference" / page).read_text() == made.PAGES[page](), "run: make docs"


WEB = ROOT / "server" / "leakline_server" / "web"
# The rooms that make the parts of a page, and the template that has the others.
RUN_PAGE = (
    "sections", "inventory", "ending_view", "waterfall_view", "calculator", "growth_since", "notes_view", "planned",
    "promises", "effects_view", "expectations_view", "forecasts_view", "types_view",
)  # fmt: skip
COMPARISON = ("compare_view", "promises", "effects_view")


@pytest.mark.parametrize(
    ("document", "rooms", "template"),
    [("run-page.md", RUN_PAGE, "_run.html"), ("fixes.md", COMPARISON, "compare.html")],
)
def test_every_part_of_a_page_is_told_and_called_as_there(
    document: str, rooms: tuple[str, ...], template: str
) -> None:
    named = set(re.findall(r"\*\*([^*]+)\*\*", "\n".join(rows_of_parts(document))))
    made = {title for room in rooms for title in titles_of(WEB / f"{room}.py")}
    drawn = re.findall(r"<h2[^>]*>([\w ]+)</h2>", (ROOT / "templates" / template).read_text())
    tiles = {"GROWTH", "AFTER n", "PEAK", "TIME"} if document == "fixes.md" else set()
    assert len(made) > 8
    assert named == made | {*drawn} | tiles


def rows_of_parts(document: str) -> list[str]:
    """The first cells of the tables that begin with a column of parts."""
    text = (DOCS / document).read_text()
    tables = re.findall(r"^\| part \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.M)
    return [row.split("|")[1] for rows in tables for row in rows.splitlines()]


def titles_of(path: Path) -> Iterator[str]:
    """Of the sections that a room makes, before a comma: the run's unit is told as a generation."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Section", "_plain"):
            title = call.args[1]
            words = title.values if isinstance(title, ast.JoinedStr) else [title]
            said = "".join(
                str(each.value) if isinstance(each, ast.Constant) else "generation"
                for each in words
                if not (isinstance(each, ast.FormattedValue) and _is_side(each))
            )
            # What is handed on is the title of another call.
            if isinstance(title, ast.Constant | ast.JoinedStr):
                yield said.rstrip(", ")


def _is_side(part: ast.FormattedValue) -> bool:
    return isinstance(part.value, ast.Name) and part.value.id == "side"


def test_every_series_that_a_probe_gives_is_named() -> None:
    # One that ends in what is worked out says its last part elsewhere.
    whole = [(name, where) for name, where in given() if not name.endswith("<x>")]
    assert len(whole) > 60
    missing = [each for each in whole if not any(name.fits(each[0]) for name in names())]
    assert not missing


def test_every_name_is_given_by_something() -> None:
    script = (ROOT / "agent_client" / "js" / "leakline.js").read_text()
    code = {name for name, _ in given()} | set(re.findall(r'"((?:tfjs|js)\.[a-z_]+)"', script))
    parts = {part for path in GIVING for part in words(path)}
    unheard = [
        each.pattern
        for each in names()
        if each.pattern not in code
        # A name put together of a part that varies and one that is written somewhere.
        and not any(re.sub(r"<\w+>", "<x>", each.pattern) == name for name in code)
        and each.pattern.rpartition(".")[2] not in parts
    ]
    assert not unheard


def test_a_name_stands_in_the_list_once() -> None:
    patterns = [each.pattern for each in names()]
    assert len(patterns) == len(set(patterns)) > 70
    assert all(each.meaning and not each.meaning.endswith(".") for each in names())
    assert all(family for _, family in FAMILIES.values())


def given() -> Iterator[tuple[str, str]]:
    """(series with <x> for what is worked out, file) of every text in the code that is one."""
    for path in GIVING:
        for node in ast.walk(ast.parse(path.read_text())):
            text = written(node)
            if text is not None and SERIES.fullmatch(text):
                yield text, path.name


def written(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(each.value) if isinstance(each, ast.Constant) else "<x>" for each in node.values
        )
    return None


def words(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.lstrip(".")
        elif isinstance(node, ast.JoinedStr):
            yield from (
                str(each.value).rpartition(".")[2]
                for each in node.values
                if isinstance(each, ast.Constant)
            )
