"""Names in documents exist, names in the code are documented, and links and reference are correct."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from benchmarks import compared
from benchmarks.server import loggers, subjects
from benchmarks.server.rows import to_json
from docs.reference.series_names import FAMILIES, names
from markdown_it import MarkdownIt

from leakline.cli import COMMANDS
from leakline.transport.spool_format import read_batches
from leakline_server import limits
from leakline_server.config import SECRETS
from leakline_server.web import docs as documents
from leakline_server.web.docs import ROOT as PREFIX
from leakline_server.web.docs import anchor_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CLIENT = ROOT / "agent_client" / "leakline"
SERVER = ROOT / "server" / "leakline_server"
SERVED = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
PAPERS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")])
SOURCES = [
    path
    for folder in ("agent_client", "server", "tests", ".ci", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".js", ""} and path.is_file()
] + [ROOT / "Makefile"]
SETTING = re.compile(r"\bLEAKLINE_(?!LINE\b)[A-Z_]+\b")


# -- names in documents exist ------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_links_and_commands_in_documents_exist(paper: Path) -> None:
    text = paper.read_text()
    top = {path.name for path in ROOT.iterdir()}
    for name in re.findall(r"`([\w.*-]+(?:/[\w.*-]+)+/?)`", text):
        if name.split("/")[0] in top and "*" not in name and not name.startswith(".leakline"):
            # NAME in a recipe stands for the reader's own name: another file of the kind must exist.
            found = (
                any(ROOT.glob(name.replace("NAME", "*")))
                if "NAME" in name
                else (ROOT / name).exists()
            )
            assert found, f"it names {name}"
    pictures = re.findall(r"\s(?:src|srcset)=\"([^\":]+)\"", text)
    for target in pictures + re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (paper.parent / target).exists(), f"it links to {target}"
    assert set(re.findall(r"`leakline ([a-z]+)", text)) <= set(COMMANDS)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= {*targets, *_benchmarks()}


def _benchmarks() -> Iterator[str]:
    """Yield the targets of the rule `bench-%`, which runs a module of this name."""
    assert re.search(r"^bench-%:.*\n.* -m benchmarks\.\$\* ", (ROOT / "Makefile").read_text(), re.M)
    for path in (ROOT / "benchmarks").iterdir():
        is_script = path.suffix == ".py" and "__main__" in path.read_text()
        if is_script or (path / "__main__.py").exists():
            yield f"bench-{path.stem}"


def _settings(paths: list[Path]) -> set[str]:
    return {name for path in paths for name in SETTING.findall(path.read_text(errors="replace"))}


def test_settings_in_documents_exist_and_those_of_the_code_are_documented() -> None:
    # The code builds these names from parts.
    known = _settings(SOURCES) | {f"{name}_FILE" for name in (*SECRETS, "LEAKLINE_TOKEN")}
    for paper in PAPERS:
        assert _settings([paper]) <= known, paper
    code = [path for path in SOURCES if "tests" not in path.parts]
    assert _settings(code) <= _settings([DOCS / "settings.md"])


# -- links between documents -------------------------------------------------------------------------------


def test_the_index_lists_every_document_once() -> None:
    named = re.findall(r"\]\(([\w/.-]+\.md)\)", (DOCS / "README.md").read_text())
    assert sorted(named) == [each for each in SERVED if each != "README.md"]


@pytest.mark.parametrize("document", SERVED)
def test_every_link_has_a_target(document: str) -> None:
    for target in re.findall(r'href="([^"]+)"', documents.read(document).body):
        path, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        assert path.startswith(PREFIX) or not path, target
        name = path.removeprefix(PREFIX).lstrip("/")
        leads = document if not path else documents.document_called(name)
        if leads is None:
            assert name in documents.files(), f"{document} links to {target}"
        elif anchor:
            assert f'id="{anchor}"' in documents.read(leads).body, f"{document} links to {target}"


@pytest.mark.parametrize("paper", ["README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"])
def test_links_from_the_root_documents_have_targets(paper: str) -> None:
    text = (ROOT / f"{paper}.md").read_text()
    for target, anchor in re.findall(r"\]\(docs/([\w/.-]+\.md)#([\w-]+)\)", text):
        headings = re.findall(r"^#+ (.+)$", (DOCS / target).read_text(), re.M)
        anchors = [anchor_of(heading.replace("`", "")) for heading in headings]
        assert anchor in anchors, (target, anchor)


@pytest.mark.parametrize("document", SERVED)
def test_no_document_contains_html(document: str) -> None:
    """The server would show HTML as text."""
    text = re.sub(r"^<!-- [\w: -]+ -->\n", "", (DOCS / document).read_text(), flags=re.M)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inside = [each for token in tokens for each in (token, *(token.children or []))]
    assert not [t.content for t in inside if t.type in ("html_block", "html_inline")]


def generator() -> ModuleType:
    sys.path.insert(0, str(DOCS / "reference"))
    return importlib.import_module("generate")


def test_the_reference_is_up_to_date() -> None:
    pages = generator().PAGES
    assert set(pages) == {path.name for path in (DOCS / "reference").glob("*.md")}
    for page, make in pages.items():
        assert (DOCS / "reference" / page).read_text() == make(), f"{page}: run: make docs"


def test_every_entry_of_the_reference_has_a_description() -> None:
    for page in ("commands.md", "series.md"):
        text = (DOCS / "reference" / page).read_text()
        entries = re.findall(r"^(?:- |\|)`(.+?)`(?:, `.+?`)?(?:: |\|)(.*?)\|?$", text, re.M)
        assert len(entries) == len(re.findall(r"^(?:- |\|)`", text, re.M)) > 70, page
        assert not [name for name, words in entries if not re.search(r"\w", words)], page
    text = (DOCS / "reference" / "api.md").read_text()
    for entry in text.split("\n### ")[1:]:
        first = entry.splitlines()[2]
        assert re.match(r"\w.+\.", first), entry
        assert "–" not in entry and "()" not in entry, entry


# -- the parts of a page -----------------------------------------------------------------------------------

# The modules that build the sections of a page, and the template with the others.
RUN_PAGE = (
    "rendering/evidence_sections", "run_page/inventory_tables", "run_page/process_sections", "run_page/annotations",
    "run_page/fix_effects", "expectations/view", "run_page/verdict_view", "run_page/counted_objects",
)  # fmt: skip
COMPARISON = ("compare", "expectations/view", "run_page/fix_effects")
TILES = {"GROWTH", "AFTER n", "PEAK", "TIME"}


@pytest.mark.parametrize(
    ("document", "rooms", "template", "tiles"),
    [
        ("run-page.md", RUN_PAGE, "_run.html", {"Cause", "Causes"}),
        ("fixes.md", COMPARISON, "compare.html", TILES),
    ],
)
def test_every_part_of_a_page_is_documented_by_its_title(
    document: str, rooms: tuple[str, ...], template: str, tiles: set[str]
) -> None:
    # The first cells of the tables that begin with a column of parts.
    text = (DOCS / document).read_text()
    tables = re.findall(r"^\| part \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.M)
    cells = [row.split("|")[1] for rows in tables for row in rows.splitlines()]
    named = set(re.findall(r"\*\*([^*]+)\*\*", "\n".join(cells)))
    made = {title for room in rooms for title in titles_of(SERVER / "web" / f"{room}.py")}
    drawn = re.findall(r"<h2[^>]*>([\w ]+)</h2>", (ROOT / "templates" / template).read_text())
    assert len(made) > 8
    assert named == made | {*drawn} | tiles


def titles_of(path: Path) -> Iterator[str]:
    """Yield the titles of the sections in a module, up to a comma and with the run's unit as "generation"."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Section", "_plain"):
            title = call.args[1]
            # A variable is the title of another call.
            if isinstance(title, ast.Constant | ast.JoinedStr):
                words = title.values if isinstance(title, ast.JoinedStr) else [title]
                yield "".join(_literal(each) for each in words).rstrip(", ")


def _literal(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else None
    return "" if isinstance(value, ast.Name) and value.id == "side" else "generation"


# -- the names of series -----------------------------------------------------------------------------------

# How a series name begins; the code may compute the rest.
FAMILY = "|".join(sorted({each.pattern.partition(".")[0] for each in names()}))
SERIES = re.compile(rf"(?:{FAMILY})\.(?:[a-z_]+|<x>)(?:\.(?:[a-z_]+|<x>))?")


def texts() -> Iterator[str]:
    """Yield every string in the modules that send readings, with <x> for computed parts."""
    others = (
        "core/training_loop",
        "core/phase_accounting",
        "sampling/overhead_budget",
        "sampling/external_process",
    )
    giving = [CLIENT / f"{name}.py" for name in others]
    for path in (*CLIENT.glob("probes/**/*.py"), *giving):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = node.values
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "<x>" for p in parts)


def test_every_series_of_a_probe_is_listed_and_every_listed_one_exists() -> None:
    every = set(texts())
    given = {text for text in every if SERIES.fullmatch(text)}
    # The last part of a name that ends in a computed part is written elsewhere.
    whole = [series for series in given if not series.endswith("<x>")]
    assert len(whole) > 40
    assert not [each for each in whole if not any(name.fits(each) for name in names())]
    script = (ROOT / "agent_client" / "js" / "leakline.js").read_text()
    given |= set(re.findall(r'"((?:tfjs|js)\.[a-z_]+)"', script))
    # A name may consist of a varying part and a literal elsewhere.
    pieces = {piece for text in every if "<x>" in text for piece in text.split("<x>")}
    parts = {text.lstrip(".") for text in every} | {each.rpartition(".")[2] for each in pieces}
    assert not [
        each.pattern
        for each in names()
        if re.sub(r"<\w+>", "<x>", each.pattern) not in given
        and each.pattern not in given
        and each.pattern.rpartition(".")[2] not in parts
    ]


def test_a_series_name_is_listed_once() -> None:
    patterns = [each.pattern for each in names()]
    assert len(patterns) == len(set(patterns)) > 70
    assert all(each.meaning and not each.meaning.endswith(".") for each in names())
    assert all(family for _, family in FAMILIES.values())


# -- every limit of the server has one name, and docs/settings.md states its value ---------------------------

LIMITS = sorted(name for name in vars(limits) if name.isupper())


def shown(name: str, value: float) -> str:
    if "_BYTES" in name or name.startswith("BYTES"):
        units = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
        unit, size = next((u, s) for u, s in units if value >= s)
        return f"{value / size:g} {unit}"
    return f"{value:,.0f}" + (" s" if name.endswith("SECONDS") else "")


def test_every_limit_is_used_and_documented_with_its_value() -> None:
    # The column with the consequence is left out where all rows of a table have the same.
    rows = re.compile(r"^\|[^|]+\|([^|]+)\|(?:[^|]+\|)? `(\w+)` \|$", re.M)
    text = (DOCS / "settings.md").read_text().partition("\n## Limits of the server\n")[2]
    listed = {name: said.strip() for said, name in rows.findall(text)}
    assert listed == {name: shown(name, getattr(limits, name)) for name in LIMITS}
    assert len(LIMITS) > 40
    code = (path.read_text() for path in SERVER.rglob("*.py") if path.name != "limits.py")
    assert set(LIMITS) <= {word for text in code for word in re.findall(r"\b[A-Z]\w+", text)}


# Calls of pydantic and msgspec, and of route parameters.
DECLARE = {"Field", "Query", "Path", "Meta", "Header", "Form", "Body", "Cookie"}
BOUNDS = {"max_length", "min_length", "le", "lt", "ge", "gt", "max_items", "multiple_of"}


def declared_bounds(text: str) -> list[tuple[str, ast.expr]]:
    """Return (bound, value) of everything declared with a bound; a fixed length is a shape, not a bound."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in DECLARE):
            continue
        said = {k.arg: k.value for k in node.keywords if k.arg in BOUNDS}
        lengths = [ast.dump(said[name]) for name in ("min_length", "max_length") if name in said]
        if len(lengths) == 2 and len(set(lengths)) == 1:
            continue
        found += [(str(name), value) for name, value in said.items()]
    return found


def of_its_own(value: ast.expr) -> list[str]:
    """Return the parts of a bound that `limits.py` does not define; zero and one need no name."""
    parts = list(ast.walk(value))
    numbers = [str(n.value) for n in parts if isinstance(n, ast.Constant) and n.value not in (0, 1)]
    return numbers + [n.id for n in parts if isinstance(n, ast.Name) and n.id not in LIMITS]


def test_every_bound_of_a_schema_is_a_named_limit() -> None:
    seen = 0
    for path in SERVER.rglob("*.py"):
        for bound, value in declared_bounds(path.read_text()):
            seen += 1
            own = of_its_own(value)
            assert not own, f"{path.name}:{value.lineno} says {bound}={ast.unparse(value)}"
    assert seen > 50


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Query(ge=1, le=2**31 - 1)", ["2", "31"]),
        ("Field(max_length=MAX_OF_MINE)", ["MAX_OF_MINE"]),
        ("Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)", []),
        ("Field(min_length=3, max_length=3)", []),
    ],
)
def test_an_unnamed_number_in_a_bound_is_found(text: str, expected: list[str]) -> None:
    assert [each for _, value in declared_bounds(text) for each in of_its_own(value)] == expected


def test_no_module_defines_a_limit_of_its_own() -> None:
    for path in SERVER.rglob("*.py"):
        # Chat services have their own limits, and a page has a fixed number of rows.
        if (
            path.name == "limits.py"
            or "alerts" in path.parts
            or path.name == "view.py"
            or "run_page" in path.parts
        ):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                assert node.target.id not in LIMITS, f"{path.name} defines {node.target.id} again"


# -- docs/compared.toml and compared.md: a word for each tool, and a page and a test for each claim


TEXT: Final = (DOCS / "compared.md").read_text(encoding="utf-8")
OTHERS: Final = compared.TOOLS[1:]
WRITTEN: Final = TEXT.partition(compared.BEGIN)[2].partition(compared.END)[0]
DATA: Final = tomllib.loads(compared.FEATURES.read_text(encoding="utf-8"))
FEATURES: Final[dict[int, dict[str, Any]]] = {each["number"]: each for each in DATA["feature"]}


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def words_of(number: int) -> dict[str, str]:
    return compared.words_of(FEATURES[number])


# -- the features ------------------------------------------------------------------------------------------


def test_every_feature_has_one_word_for_each_tool_and_a_known_one_for_leakline() -> None:
    assert list(FEATURES) == list(range(1, 68)) == [each["number"] for each in DATA["feature"]]
    for number, feature in FEATURES.items():
        named = [tool for key in compared.WORDS for tool in feature.get(key, ())]
        assert len(named) == len(set(named)), number
        assert set(named) <= set(compared.TOOLS), number
        assert words_of(number)["Leakline"] != "?", number
        assert feature["what"].strip()


def test_the_page_lists_the_features_marked_as_shown() -> None:
    shown = TEXT.partition(compared.FEATURES_BEGIN)[2].partition(compared.FEATURES_END)[0]
    assert shown == compared.features(), "run: make bench-compared BENCH_ARGS=--again"
    number = len([each for each in FEATURES.values() if each.get("shown")])
    assert shown.count("\n") == number + 2
    assert f"{number} of {len(FEATURES)} features" in section("Features")


def test_partial_features_of_leakline_are_explained() -> None:
    partly = [number for number in FEATURES if words_of(number)["Leakline"] == "partly"]
    assert partly
    assert [n for n in partly if "Leakline" not in FEATURES[n].get("notes", "")] == []


def test_every_claim_of_ours_has_a_page_and_a_test() -> None:
    for number, feature in FEATURES.items():
        if words_of(number)["Leakline"] == "no":
            continue
        document, _, anchor = feature["page"].partition("#")
        assert document in SERVED, number
        assert not anchor or f'id="{anchor}"' in documents.read(document).body, number
        text = (ROOT / feature["test"]).read_text(encoding="utf-8")
        assert re.search(r"^(async )?def test_", text, re.M), number


def test_features_listed_as_unique_are_unique() -> None:
    lists = re.findall(r"\(([\d, ]+)\)", section("What only Leakline does"))
    alone = {
        number
        for number in FEATURES
        if words_of(number)["Leakline"] == "yes"
        and "yes" not in [words_of(number)[tool] for tool in OTHERS]
    }
    assert {int(number) for each in lists for number in each.split(", ")} == alone


@pytest.mark.parametrize("heading", ["What each is for", "What they do better"])
def test_every_other_tool_is_described(heading: str) -> None:
    assert [tool for tool in OTHERS if tool not in section(heading)] == []


def test_every_other_tool_has_sources_on_the_web() -> None:
    sources = {each["tool"]: each["pages"] for each in DATA["source"]}
    assert set(OTHERS) < set(sources)
    assert all(re.fullmatch(r"https://[\w.-]+/\S+", page) for of in sources.values() for page in of)


def test_the_server_shows_every_table_of_the_page_without_markers() -> None:
    body = documents.read("compared.md").body
    assert body.count("<table>") == len(re.findall(r"^\|(?: ?---:? ?\|)+$", TEXT, re.M)) == 6
    assert "compared: begin" not in body and "features: begin" not in body


# -- what it costs -----------------------------------------------------------------------------------------


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compared.RECORDED.read_text(encoding="utf-8"))
    return found


def tables(text: str) -> list[list[list[str]]]:
    """Return the lines of each table without the delimiter row."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    lines = [[line for line in block.splitlines() if "---" not in line] for block in blocks]
    return [[line[2:-2].split(" | ") for line in each] for each in lines]


def test_the_page_has_the_last_measurement_and_its_machine(recorded: dict[str, Any]) -> None:
    assert compared.page(recorded) == WRITTEN, "run: make bench-compared BENCH_ARGS=--again"
    first = WRITTEN.splitlines()[0]
    assert recorded["date"] in first
    assert recorded["client"]["machine"] in first
    assert all(f"{name} {version}" in first for name, version in recorded["versions"].items())


def test_writing_the_page_is_idempotent(recorded: dict[str, Any]) -> None:
    assert compared.between(TEXT, compared.page(recorded)) == TEXT
    other = compared.between(TEXT, "written again\n")
    assert other.count("written again\n") == 1
    assert compared.between(other, WRITTEN) == TEXT


@pytest.mark.parametrize("mark", [compared.BEGIN, compared.END])
def test_a_document_without_a_marker_is_not_changed(mark: str) -> None:
    with pytest.raises(SystemExit, match=mark.strip()):
        compared.between(TEXT.replace(mark, ""), WRITTEN)


def test_a_peer_that_is_not_installed_has_a_row_without_a_figure(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subjects, "PEERS", tmp_path)
    monkeypatch.setattr(loggers, "SNAPSHOTS", 3)
    (part,) = loggers.measure()
    found = deepcopy(recorded)
    kept = [each for each in found["server"]["parts"] if not each["title"].startswith("loggers")]
    found["server"]["parts"] = [*kept, to_json(part)]
    for row in found["client"]["rows"]:
        if "memray" in row["name"]:
            row |= {"figures": {}, "missing": "not measured"}
    shown = tables(compared.page(found))
    assert [row[1] for row in shown[2][1:]] == ["1.00", *["not installed here"] * 4]
    loops = {row[0]: row[1:4] for row in shown[0]}
    assert loops["memray"] == ["not installed here"] * 3
    assert loops["tracemalloc, 1 frame"] != ["not installed here"] * 3


def test_everything_that_our_client_is_charged_for_is_recorded(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.server.tracked", "leakline", "65", "20", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cpu, wall = json.loads(ended.stdout.splitlines()[-1])
    assert 0 < cpu < 60 and wall > 0
    (spool,) = tmp_path.rglob("*.spool")
    snapshots = [snapshot for batch in read_batches(spool) for snapshot in batch.snapshots]
    logged = [snapshot for snapshot in snapshots if snapshot.label == "logged"]
    assert [snapshot.generation for snapshot in logged] == list(range(20))
    for step, snapshot in enumerate(logged):
        gauges = {k: v for k, v in snapshot.samples.items() if k.startswith("gauge.")}
        assert gauges == {f"gauge.series_{name}": step * name for name in range(65)}
