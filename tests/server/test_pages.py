"""The pages as HTML: templates and contexts agree, and what the page of a run shows."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import jinja2.meta
import pytest
from jinja2 import nodes
from starlette.testclient import TestClient
from tests.browser.patterns import page as patterns

from leakline_server.paths import STATIC, TEMPLATES
from leakline_server.web import compare as compare_view
from leakline_server.web import overlay as overlay_view
from leakline_server.web import settings as settings_view
from leakline_server.web.alerts import view as alerts_view
from leakline_server.web.auth import pages as sign_in_pages
from leakline_server.web.incidents import view as incidents_view
from leakline_server.web.rendering import evidence_sections, number_formats, page_contexts
from leakline_server.web.rendering.table_cells import sparkline
from leakline_server.web.rendering.templating import VIEWER, breakable, environment
from leakline_server.web.run_page import inventory_tables
from leakline_server.web.runs import pages
from leakline_server.web.search_query import parse_query

DATA = Path(__file__).resolve().parents[1] / "data"
DEVICE_LINE = re.compile(r"(?:GPU \d+|Metal) [a-z][a-z, ]+")
PAGES = {
    "runs.html": page_contexts.RunsPage, "run.html": page_contexts.RunPage, "_run.html": page_contexts.RunPage,
    "compare.html": compare_view.ComparePage, "pick.html": page_contexts.PickPage,
        "error.html": page_contexts.ErrorPage,
    "alerts.html": alerts_view.AlertsPage, "settings.html": settings_view.SettingsPage,
    "overlay.html": overlay_view.OverlayPage, "incidents.html": incidents_view.IncidentsPage,
    "deleted.html": pages.DeletedPage, "sign_in.html": sign_in_pages.SignInPage,
}  # fmt: skip


def variables(template: str) -> set[str]:
    """Everything a template and what it is made of expect from outside."""
    parsed = environment().parse((TEMPLATES / template).read_text())
    # Blocks see what the top of their file imports and defines; the finder does not know that.
    own = {node.target for node in parsed.find_all(nodes.Import)} | {
        node.name for node in parsed.find_all(nodes.Macro)
    }
    found = set(jinja2.meta.find_undeclared_variables(parsed)) - own
    for name in jinja2.meta.find_referenced_templates(parsed):
        assert name is not None
        found |= variables(name)
    return found - {VIEWER, *environment().globals}


@pytest.mark.parametrize("template", PAGES)
def test_a_template_uses_what_its_context_has_and_nothing_else(template: str) -> None:
    assert variables(template) <= {field.name for field in fields(PAGES[template])}


@pytest.mark.parametrize("template", sorted(set(PAGES) - {"_run.html"}))
def test_a_context_carries_nothing_that_no_template_shows(template: str) -> None:
    assert {field.name for field in fields(PAGES[template])} <= variables(template)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("count", number_formats.count),
        ("seconds", number_formats.seconds),
        ("bytes", number_formats.size),
    ],
)
def test_numbers_read_the_same_in_python_and_javascript(name: str, write: Any) -> None:
    for value, text in json.loads((DATA / "formats.json").read_text())[name]:
        assert write(value) == text


def test_a_change_has_its_sign_and_an_interval_its_ends() -> None:
    assert number_formats.change(2**30) == "+1.00 GiB"
    assert number_formats.change(None) == "not measured"
    assert number_formats.rate(3072.2) == "+3,072"
    assert (
        number_formats.interval({"estimate": 1024, "low": 1024, "high": 2048})
        == "1.00 KiB (1.00 KiB to 2.00 KiB)"
    )
    assert number_formats.percent(-0.0001) == "0 %"
    assert number_formats.percent_change(-95) == "\u221295.0 %"


def test_colours_are_written_in_one_file() -> None:
    colour = re.compile(r"[\"':\s]#[0-9a-f]{3,8}[\"';\s]|\brgba?\(\s*\d", re.IGNORECASE)
    files = [*TEMPLATES.glob("*.html")]
    for pattern in ("css/*.css", "*.json", "js/*.js"):
        files += STATIC.glob(pattern)
    assert len(files) > 15
    wrong = {path.name for path in files if colour.search(path.read_text())}
    assert wrong <= {"variables.css"}


def test_nothing_is_inline_and_nothing_comes_from_another_host() -> None:
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\sstyle=|\son[a-z]+\s*=|<style|javascript:", text), path.name
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), path.name
        assert not re.search(r"<script(?![^>]*(?:src=|type=\"application/json\"))", text), path.name


def test_the_patterns_have_every_colour_and_every_status() -> None:
    page = patterns.html()
    words = re.sub(r"<[^>]*>", " ", page)
    colours = re.findall(r"^ {2}(--[\w-]+):", (STATIC / "css" / "variables.css").read_text(), re.M)
    assert len(colours) > 30
    assert re.findall(r"fill=\"var\((--[\w-]+)\)\"", page) == colours
    for word in ("Leaking", "Suspected leak", "Watch", "Filling", "OK", "Recovered", "Learning"):
        assert word in words
    assert "7.10 GiB" in words and "not measured" in words


def test_every_static_file_a_page_names_is_there() -> None:
    text = "".join(path.read_text() for path in TEMPLATES.glob("*.html"))
    names = set(re.findall(r"\"/static/([^\"#]+)", text))
    assert len(names) > 8
    assert not [name for name in names if not (STATIC / name).is_file()]


def test_a_long_name_breaks_where_people_would_break_it_and_is_never_markup() -> None:
    assert breakable("trading.TradingEnvironment") == "trading.<wbr>Trading<wbr>Environment"
    assert breakable("<b>") == "&lt;b&gt;"
    assert breakable("7.10 GiB") == "7.10\u00a0GiB"


def test_words_of_a_search_become_filters() -> None:
    assert parse_query("project:erl status:leaking tag:x before fix") == {
        "project": "erl", "status": "confirmed", "tags": ("x",), "words": ("before", "fix"),
    }  # fmt: skip
    assert parse_query("http://x project:") == {"words": ("http://x", "project:")}


def test_a_run_with_one_reading_has_no_sparkline_and_a_steady_one_is_flat() -> None:
    assert sparkline([5, None]) is None
    drawn = sparkline([100.0, 100.1, 100.0])
    assert drawn is not None
    heights = [float(pair.split(",")[1]) for pair in drawn.line.split()]
    assert max(heights) - min(heights) < 1


@pytest.fixture
def read_page(api: TestClient) -> Any:
    def read(path: str, status: int = 200) -> str:
        answer = api.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        return answer.text

    return read


def test_an_empty_server_shows_the_lines_to_add_with_its_address(read_page: Any) -> None:
    text = read_page("/")
    assert "leakline.init(" in text
    assert "http://127.0.0.1" in text


def test_a_page_that_is_not_there_says_so_in_html(read_page: Any) -> None:
    assert "No such run" in read_page("/runs/nobody", 404)
    assert "No such run" in read_page("/runs/nobody/fragments", 404)
    assert "No such run" in read_page("/compare?before=a&after=b", 404)
    assert "Not found" in read_page("/nothing/here", 404)


def test_a_cursor_from_nowhere_leads_back_to_the_list(read_page: Any) -> None:
    read_page("/?cursor=nonsense")


def test_a_run_that_only_joined_is_a_page_without_numbers(
    api: TestClient, make_run: Any, read_page: Any
) -> None:
    make_run().create(api)
    text = read_page("/runs/r1")
    assert "Not known yet" in text and "0.00 GiB" not in text and "nan" not in text.lower()
    # What has ended is not being measured any more.
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    text = read_page("/runs/r1")
    assert re.search(r"needs \d+ whole (generations|minutes)", text)
    assert "being measured" not in text and "Not known yet" not in text


def test_a_run_shows_its_evidence(api: TestClient, make_run: Any, read_page: Any) -> None:
    make_run().begin(api, 36)
    text = read_page("/runs/r1")
    names = "trend memory types holders large-objects events processes"
    for section in names.split():
        assert f'id="{section}"' in text, section
    assert "app.<wbr>Env" in text and "mark 0" in text and "GiB" in text


def test_the_page_tells_the_highest_peak_of_a_phase_and_who_saw_it(
    api: TestClient, make_run: Any, read_page: Any
) -> None:
    peaks: dict[str, Any] = {
        "process.phase_peak_bytes": lambda n: {0: 3 * 2**30, 1: 4 * 2**30}.get(n % 3)
    }
    make_run(extra=peaks).begin(api, 36)
    text = read_page("/runs/r1")
    assert "Highest inside a phase: 4.00 GiB in train (as seen by background readings" in text


def test_what_other_threads_took_is_told_after_the_phases_and_has_no_colour_of_theirs(
    api: TestClient, make_run: Any, read_page: Any
) -> None:
    def at_ends(value: int) -> Any:
        return lambda n: value if n % 3 == 2 else None

    make_run(
        extra={
            "phase.other_threads.bytes": at_ends(7 * 2**20),
            "phase.between.bytes": at_ends(2**20),
            "phase.leakline.bytes": at_ends(4096),
        }
    ).begin(api, 36)
    text = read_page("/runs/r1").replace("<wbr>", "")
    books = text[text.index('id="books"') :]
    rows = re.findall(r"<code>([\w/]+)</code>", books[: books.index("</table>")])
    assert rows[-3:] == ["other_threads", "between", "leakline"]


def test_a_full_collection_says_how_many_objects_it_freed() -> None:
    event = {
        "kind": "collection", "name": "full", "generation": 3, "time": 1_750_000_000.0, "phase": None,
        "data": {"generation": 2, "freed": 1234, "uncollectable": 0, "seconds": 0.5},
    }  # fmt: skip
    section = inventory_tables.events([event], "generation")
    assert section is not None and section.table is not None
    assert "freed 1,234 objects of unknown size in 0.50 s" in str(section.table.rows[0])


def test_of_a_short_run_the_share_that_measuring_takes_is_not_known_yet() -> None:
    spent = {"client.seconds": 3.0, "client.background_seconds": 1.0}
    told = [
        {row.cells[0].text: row.cells[1].text for row in section.table.rows}["share of the run's time"]
        for seconds in (2.0, 59.0, None, 400.0)
        if (section := evidence_sections.cost(spent, seconds)) is not None and section.table is not None
    ]  # fmt: skip
    assert told == [*["not known yet: told from 1 min 0 s on"] * 3, "1.000 %"]


def test_the_fragments_are_the_page_without_its_frame(
    api: TestClient, make_run: Any, read_page: Any, eventually: Any
) -> None:
    make_run().begin(api, 36)
    # What has been found has sections of its own.
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"] == 12)
    whole, fragments = read_page("/runs/r1"), read_page("/runs/r1/fragments")
    parts = re.compile(r'data-part="([^"]+)"')
    assert "<html" not in fragments
    assert parts.findall(fragments) == parts.findall(whole)
    assert "trend.data" in parts.findall(fragments)


def test_names_from_a_training_are_text_not_markup(
    api: TestClient, make_run: Any, read_page: Any
) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = make_run()
    header = {**run.header, "name": evil, "project": evil, "tags": [evil], "phases": [evil]}
    assert api.post("/api/v1/runs", json=header).status_code == 201
    run.send(api, 0, 9)
    for path in ("/", "/runs/r1", "/compare"):
        assert "<img" not in read_page(path)


def test_ranks_have_a_view_each_and_attempts_share_one(
    api: TestClient, make_run: Any, read_page: Any
) -> None:
    make_run().begin(api, 9)
    make_run(instance="p2", rank=1).send(api, 0, 9)
    make_run(instance="p3", attempt=2).send(api, 0, 9)
    text = read_page("/runs/r1?process=rank+1+main")
    assert text.count('class="tag" href="?process=rank') == 2
    chart = json.loads(re.search(r"data-chart>(.*?)</script>", text)[1])  # type: ignore[index]
    assert {line["source"]["process"] for line in chart["lines"]} == {"p2"}


def test_a_run_without_generations_is_drawn_over_time(
    api: TestClient, make_run: Any, read_page: Any, eventually: Any
) -> None:
    run = make_run()
    run.create(api)
    wire = run.wire(0, 9)
    wire["columns"]["generation"] = [None] * 9
    wire["columns"]["phase"] = [None] * 9
    wire["columns"]["kind"] = ["sample"] * 9
    for name in ("events", "large_objects", "census", "holders"):
        wire[name] = []
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    # Examined or not: minutes are no generations.
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"])
    chart = json.loads(re.search(r"data-chart>(.*?)</script>", read_page("/runs/r1"))[1])  # type: ignore[index]
    assert chart["x_unit"] == "time" and len(chart["lines"][0]["x"]) == 9


def test_two_runs_are_compared_and_the_older_of_two_picked_is_before(
    api: TestClient, make_run: Any, read_page: Any
) -> None:
    for name, leak, started in (("r1", 2**26, 1.7e9), ("r2", 0, 1.8e9)):
        make_run(id=name, leak_bytes=leak, started=started).begin(api, 30)
    text = read_page("/compare?pick=r2&pick=r1")
    assert text.index('href="/runs/r1"') < text.index('href="/runs/r2"')
    assert 'id="chart-overlay"' in text and "By type" in text
    assert "Choose a run" in read_page("/compare?before=r1")


@pytest.mark.parametrize(
    ("native", "said"),
    [
        (True, "Its native module looks at the heap."),
        ("LEAKLINE_NATIVE=0 switches it off", "in pure Python, so less often: LEAKLINE_NATIVE=0"),
        (None, "in the training process."),
    ],
)
def test_the_page_says_what_looks_at_the_heap(native: object, said: str) -> None:
    section = evidence_sections.cost({"client.seconds": 1.0}, 100.0, native)
    assert section is not None
    assert said in section.how


AHEAD = re.compile(r'<link rel="modulepreload" href="/static/js/([\w-]+\.js)">')
SCRIPT = re.compile(r'<script type="module" src="/static/js/([\w-]+\.js)"></script>')
IMPORT = re.compile(r'^\s*import\b.*?"\./([\w-]+\.js)"', re.MULTILINE | re.DOTALL)


def needed_modules(name: str, found: set[str]) -> set[str]:
    if name not in found:
        found.add(name)
        for other in IMPORT.findall((STATIC / "js" / name).read_text()):
            needed_modules(other, found)
    return found


@pytest.fixture(scope="module")
def scripted_api(shared_api: TestClient, make_run: Any) -> TestClient:
    for number in (1, 2):
        make_run(id=f"r{number}", instance=f"p{number}").begin(shared_api, 30)
    return shared_api


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("/runs/r1", "run.js"),
        ("/compare?before=r1&after=r2", "compare.js"),
        ("/overlay?run=r1&run=r2", "overlay.js"),
    ],
)
def test_what_a_script_needs_is_named_ahead_of_it(
    path: str, entry: str, scripted_api: TestClient
) -> None:
    page = scripted_api.get(path).text
    assert entry in SCRIPT.findall(page)
    assert page.index("modulepreload") < page.index(f'/static/js/{entry}"></script>')
    named = AHEAD.findall(page)
    assert len(named) == len(set(named)) > 5
    assert set(named) == needed_modules(entry, set())
    for name in named:
        assert scripted_api.get(f"/static/js/{name}").status_code == 200


def test_a_page_of_lists_loads_no_charts(scripted_api: TestClient) -> None:
    assert not AHEAD.findall(scripted_api.get("/").text)


def page_with_devices(api: TestClient, make_run: Any, machine: str) -> str:
    told = json.loads((DATA / f"gpu_{machine}.json").read_text(encoding="utf-8"))["expected"]
    run = make_run(
        extra={name: lambda _, value=value: value for name, value in told.items()}
    ).begin(api, 12)
    answer = api.get(f"/runs/{run.id}")
    assert answer.status_code == 200
    return answer.text


def test_a_page_shows_each_device_and_what_could_not_be_given(
    api: TestClient, make_run: Any
) -> None:
    page = page_with_devices(api, make_run, "two_h200")
    for device in (0, 1):
        for what in ("allocated", "reserved", "active", "outside torch", "this process, driver"):
            assert f"GPU {device} {what}" in DEVICE_LINE.findall(page)
    assert "torch emptied its cache and tried again twice and ran out of memory once." in page
    assert "None of them sees memory outside torch" in page


def test_a_page_has_no_line_for_what_is_not_known(api: TestClient, make_run: Any) -> None:
    lines = DEVICE_LINE.findall(page_with_devices(api, make_run, "rtx4090_in_a_container"))
    assert "GPU 0 in use, driver" in lines
    assert not any("outside torch" in line or "this process" in line for line in lines)
