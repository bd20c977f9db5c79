"""The pages as HTML: templates match their contexts, the content of run and settings pages, and links."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jinja2.meta
import pytest
from jinja2 import nodes
from starlette.testclient import TestClient
from tests.browser.patterns import page as patterns

from leakline_server.app import create_app
from leakline_server.config import VARIABLES, Config, from_arguments, from_environment
from leakline_server.paths import STATIC, TEMPLATES
from leakline_server.store.engine import open_engine
from leakline_server.store.maintenance import disk_space, storage_sizes
from leakline_server.store.maintenance.storage_sizes import Overview, ProjectSize, overview
from leakline_server.web import compare as compare_view
from leakline_server.web import overlay as overlay_view
from leakline_server.web import settings as settings_view
from leakline_server.web.alerts import view as alerts_view
from leakline_server.web.auth import pages as sign_in_pages
from leakline_server.web.incidents import view as incidents_view
from leakline_server.web.rendering import evidence_sections, number_formats, page_contexts
from leakline_server.web.rendering.table_cells import code_link, commit_link, sparkline, web_link
from leakline_server.web.rendering.templating import VIEWER, breakable, environment, zoned
from leakline_server.web.run_page.annotations import timeline
from leakline_server.web.runs import pages
from leakline_server.web.search_query import Search, parse_query
from leakline_server.web.settings import Found, settings_page
from leakline_server.worker_thread import RetainerFigures, WriterFigures

DATA = Path(__file__).resolve().parents[1] / "data"
DEVICE_LINE = re.compile(r"(?:GPU \d+|Metal) [a-z][a-z, ]+")
PAGES = {
    "runs.html": page_contexts.RunsPage, "run.html": page_contexts.RunPage, "_run.html": page_contexts.RunPage,
    "_changes.html": page_contexts.ChangesFragment,
    "compare.html": compare_view.ComparePage, "pick.html": page_contexts.PickPage,
        "error.html": page_contexts.ErrorPage,
    "alerts.html": alerts_view.AlertsPage, "settings.html": settings_view.SettingsPage,
    "overlay.html": overlay_view.OverlayPage, "incidents.html": incidents_view.IncidentsPage,
    "deleted.html": pages.DeletedPage, "sign_in.html": sign_in_pages.SignInPage,
}  # fmt: skip


def variables(template: str) -> set[str]:
    """Return every name that a template and its parts expect from outside."""
    parsed = environment().parse((TEMPLATES / template).read_text())
    # Blocks see the imports and definitions at the top of their file, which the finder does not know.
    own = {node.target for node in parsed.find_all(nodes.Import)} | {
        node.name for node in parsed.find_all(nodes.Macro)
    }
    found = set(jinja2.meta.find_undeclared_variables(parsed)) - own
    for name in jinja2.meta.find_referenced_templates(parsed):
        assert name is not None
        found |= variables(name)
    return found - {VIEWER, *environment().globals}


@pytest.mark.parametrize("template", PAGES)
def test_a_template_uses_only_what_its_context_has(template: str) -> None:
    assert variables(template) <= {field.name for field in fields(PAGES[template])}


@pytest.mark.parametrize("template", sorted(set(PAGES) - {"_run.html"}))
def test_a_context_has_only_what_its_template_uses(template: str) -> None:
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


def test_colours_are_defined_in_one_file() -> None:
    colour = re.compile(r"[\"':\s]#[0-9a-f]{3,8}[\"';\s]|\brgba?\(\s*\d", re.IGNORECASE)
    files = [*TEMPLATES.glob("*.html")]
    for pattern in ("css/*.css", "*.json", "js/*.js"):
        files += STATIC.glob(pattern)
    assert len(files) > 15
    wrong = {path.name for path in files if colour.search(path.read_text())}
    assert wrong <= {"variables.css"}


def test_nothing_is_inline_or_loaded_from_another_host() -> None:
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
    for word in ("Leaking", "Suspected", "Watch", "Filling", "OK", "Recovered", "Learning"):
        assert word in words
    assert "7.10 GiB" in words and "not measured" in words


def test_every_static_file_of_a_page_exists() -> None:
    text = "".join(path.read_text() for path in TEMPLATES.glob("*.html"))
    names = set(re.findall(r"\"/static/([^\"#]+)", text))
    assert len(names) > 8
    assert not [name for name in names if not (STATIC / name).is_file()]


def test_a_long_name_breaks_between_words_and_is_escaped() -> None:
    assert breakable("trading.TradingEnvironment") == "trading.<wbr>Trading<wbr>Environment"
    assert breakable("<b>") == "&lt;b&gt;"
    assert breakable("7.10 GiB") == "7.10\u00a0GiB"


NOW = 1_764_000_000.0  # 2025-11-24 16:00:00 UTC
DAY = 1_763_942_400.0


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("project:erl status:leaking tag:x before fix",
         {"projects": ("erl",), "statuses": ("confirmed",), "tags": ("x",), "words": ("before", "fix")}),
        ("http://x owner:", {"words": ("http://x", "owner:")}),
        ("status:leaking STATUS:Running status:confirmed", {"statuses": ("confirmed", "running")}),
        ("project:a project:a", {"projects": ("a",)}), ('"-tag:x" "NOT" not', {"words": ("-tag:x", "NOT", "not")}),
        ('config:name="my model" config:x="say \\"y\\""',
         {"matches": (("config", "name=my model"), ("config", 'x=say "y"'))}),
        ("config:lr= config:a=b=c", {"matches": (("config", "lr="), ("config", "a=b=c"))}),
        ("config:lr=0.1 HOST:gpu-7 type:\"my Env\"",
         {"matches": (("config", "lr=0.1"), ("host", "gpu-7"), ("type", "my Env"))}),
        ("started:<7d", {"started_from": NOW - 7 * 86_400}), ("started:90m", {"started_from": NOW - 5400}),
        ("started:>2w", {"started_before": NOW - 14 * 86_400}),
        ("started:2025-11-24", {"started_from": DAY, "started_before": DAY + 86_400}),
        ("started:>2025-11-24", {"started_from": DAY + 86_400}), ("started:<2025-11-24", {"started_before": DAY}),
        ("started:<2d started:>1d", {"started_from": NOW - 2 * 86_400, "started_before": NOW - 86_400}),
    ],
)  # fmt: skip
def test_words_of_a_search_become_filters(text: str, filters: dict[str, Any]) -> None:
    assert parse_query(text, NOW) == Search(filters, ())


@pytest.mark.parametrize(
    ("text", "kept", "said"),
    [
        ("owner:me", {"words": ("owner:me",)},
         "There is no filter “owner:”, so “owner:me” was searched in names. Filters: project, tag, status, config, "
         "host, commit, phase, type, started."),
        ("status:broken", {"statuses": ("broken",)},
         "There is no status “broken”. Known statuses: leaking, learning, ok, recovered, filling, watch, suspected, "
         "running, silent, finished, failed, interrupted, killed, deleted."),
        *((text, kept,
           f"“{typed}” was ignored because it has no value: write the value right after the colon, without a "
           f"space, as in {example}.")
          for text, kept, typed, example in (
            ('project:""', {}, 'project:""', "project:x"), ("status:", {}, "status:", "status:leaking"),
            ('before tag:"', {"words": ("before",)}, 'tag:""', "tag:x"),
            ("config: lr", {"words": ("lr",)}, "config:", "config:lr=0.1"),
          )),
        *((text, kept,
           f"“{typed}” was searched in names: a search finds runs that match all of its words, and cannot exclude "
           f'words. Write "{typed}" in quotes to search for it.')
          for text, kept, typed in (
            ("-tag:x", {"words": ("-tag:x",)}, "-tag:x"), ("NOT x", {"words": ("NOT", "x")}, "NOT"),
          )),
        *((text, kept,
           f"A run has only one {what}, so no run matches “{one}” and “{other}” together: search for one of them.")
          for text, kept, what, one, other in (
            ("project:a project:b", {"projects": ("a", "b")}, "project", "a", "b"),
            ("status:ok status:leaking", {"statuses": ("ok", "confirmed")}, "verdict", "ok", "leaking"),
            ("status:failed status:ok status:killed", {"statuses": ("failed", "ok", "killed")}, "state", "failed",
             "killed"),
          )),
        *((f"started:{value}", {},
           f"“started:{value}” was ignored: write an age or a day, as in started:<7d (in the last 7 days), "
           "started:>7d (before that), started:>2026-11-01 (later) or started:2026-11-20.")
          for value in ("soon", "2025-13-01", "7y", ">", "9999-12-31")),
    ],
)  # fmt: skip
def test_unsupported_search_terms_are_reported(text: str, kept: dict[str, Any], said: str) -> None:
    assert parse_query(text, NOW) == Search(kept, (said,))


def test_one_reading_has_no_sparkline_and_a_steady_run_is_flat() -> None:
    assert sparkline([5, None]) is None
    drawn = sparkline([100.0, 100.1, 100.0])
    assert drawn is not None
    heights = [float(pair.split(",")[1]) for pair in drawn.line.split()]
    assert max(heights) - min(heights) < 1


def page_of(api: TestClient, path: str, status: int = 200) -> str:
    answer = api.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    return answer.text


def test_an_empty_server_shows_the_lines_to_add_with_its_address(api: TestClient) -> None:
    text = page_of(api, "/")
    assert "leakline.init(" in text
    assert "http://127.0.0.1" in text


def test_a_missing_page_is_html(api: TestClient) -> None:
    assert "Run not found" in page_of(api, "/runs/nobody", 404)
    assert "Run not found" in page_of(api, "/runs/nobody/fragments", 404)
    assert "Run not found" in page_of(api, "/compare?before=a&after=b", 404)
    assert "Not found" in page_of(api, "/nothing/here", 404)


def test_an_unknown_cursor_leads_back_to_the_list(api: TestClient) -> None:
    page_of(api, "/?cursor=nonsense")


def test_a_run_without_snapshots_shows_no_numbers(api: TestClient, make_run: Any) -> None:
    make_run().create(api)
    text = page_of(api, "/runs/r1?tab=all")
    assert "Not known yet" in text and "0.00 GiB" not in text and "nan" not in text.lower()
    # A run that has ended is no longer being measured.
    assert api.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 200
    text = page_of(api, "/runs/r1?tab=all")
    assert re.search(r"needs \d+ whole (generations|minutes)", text)
    assert "being measured" not in text and "Not known yet" not in text


def test_the_highest_peak_inside_a_phase_is_shown(api: TestClient, make_run: Any) -> None:
    peaks: dict[str, Any] = {
        "process.phase_peak_bytes": lambda n: {0: 3 * 2**30, 1: 4 * 2**30}.get(n % 3)
    }
    make_run(extra=peaks).begin(api, 36)
    text = page_of(api, "/runs/r1?tab=all")
    assert (
        "Highest resident memory inside a phase: 4.00 GiB in train (from background readings"
        in text
    )


def test_memory_of_other_threads_is_listed_after_the_phases(api: TestClient, make_run: Any) -> None:
    def at_ends(value: int) -> Any:
        return lambda n: value if n % 3 == 2 else None

    make_run(
        extra={
            "phase.other_threads.bytes": at_ends(7 * 2**20),
            "phase.between.bytes": at_ends(2**20),
            "phase.leakline.bytes": at_ends(4096),
        }
    ).begin(api, 36)
    text = page_of(api, "/runs/r1?tab=all").replace("<wbr>", "")
    phase_accounts = text[text.index('id="phases"') :]
    rows = re.findall(r"<code>([\w/]+)</code>", phase_accounts[: phase_accounts.index("</table>")])
    assert rows[-3:] == ["other_threads", "between", "leakline"]


def test_a_full_collection_shows_how_many_objects_it_freed() -> None:
    event = {
        "kind": "collection", "name": "full", "generation": 3, "time": 1_750_000_000.0, "phase": None,
        "data": {"generation": 2, "freed": 1234, "uncollectable": 0, "seconds": 0.5},
    }  # fmt: skip
    section = timeline({"unit": "generation", "environment": {}, "notes": []}, [event], [], {})
    assert section is not None and section.table is not None
    assert "freed 1,234 objects of unknown size in 0.50 s" in str(section.table.rows[0])


def test_the_measuring_share_of_a_short_run_is_not_known_yet() -> None:
    spent = {"client.seconds": 3.0, "client.background_seconds": 1.0}
    told = [
        {row.cells[0].text: row.cells[1].text for row in section.table.rows}["share of the run's time"]
        for seconds in (2.0, 59.0, None, 400.0)
        if (section := evidence_sections.cost(spent, seconds)) is not None and section.table is not None
    ]  # fmt: skip
    assert told == [*["not known yet: shown after 1 min 0 s"] * 3, "1.000 %"]


def test_fragments_are_the_page_without_its_frame(
    api: TestClient, make_run: Any, eventually: Any
) -> None:
    make_run().begin(api, 36)
    # Findings have their own sections.
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"] == 12)
    whole, fragments = page_of(api, "/runs/r1?tab=all"), page_of(api, "/runs/r1/fragments?tab=all")
    parts = re.compile(r'data-part="([^"]+)"')
    assert "<html" not in fragments
    assert parts.findall(fragments) == parts.findall(whole)
    assert "trend.data" in parts.findall(fragments)
    for section in ("trend", "memory", "types", "holders", "large-objects", "events", "processes"):
        assert f'id="{section}"' in whole, section
    assert "app.<wbr>Env" in whole and "mark 0" in whole and "GiB" in whole


def test_names_from_a_training_are_text_not_markup(api: TestClient, make_run: Any) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = make_run()
    told = {"name": evil, "project": evil, "tags": [evil], "phases": [evil], "config": {evil: evil}}
    assert api.post("/api/v1/runs", json=run.header | told).status_code == 201
    run.send(api, 0, 9)
    for path in ("/", "/runs/r1", "/compare", "/overlay?run=r1"):
        assert "<img" not in page_of(api, path)
    api.post("/deletions", data={"pick": "r1"})
    for path in ("/", "/runs/r1", "/?q=status:deleted"):
        assert "<img" not in page_of(api, path)


def test_each_rank_has_a_view_and_attempts_share_one(api: TestClient, make_run: Any) -> None:
    make_run().begin(api, 9)
    make_run(instance="p2", rank=1).send(api, 0, 9)
    make_run(instance="p3", attempt=2).send(api, 0, 9)
    text = page_of(api, "/runs/r1?process=rank+1+main")
    ranks = text[text.index('data-part="processes"') : text.index('id="tabs"')]
    assert ranks.count('<a href="?process=rank') == 2
    chart = json.loads(re.search(r"data-chart>(.*?)</script>", text)[1])  # type: ignore[index]
    layers = [
        (line["name"], line["process"]) for line in chart["lines"] if line["group"] == "total"
    ]
    assert layers == [("rank 0 main", "p3"), ("rank 1 main", "p2")]
    own = {line["process"] for line in chart["lines"] if line["group"] != "total"}
    assert own == {"p2"}


def test_a_run_without_generations_is_drawn_over_time(
    api: TestClient, make_run: Any, eventually: Any
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
    # Minutes are not generations, whether the run has been examined or not.
    eventually(lambda: api.get("/api/v1/runs/r1/verdict").json()["generations"])
    chart = json.loads(re.search(r"data-chart>(.*?)</script>", page_of(api, "/runs/r1?tab=all"))[1])  # type: ignore[index]
    assert chart["x_unit"] == "time" and len(chart["lines"][0]["x"]) == 9


def test_the_older_of_two_selected_runs_comes_first(api: TestClient, make_run: Any) -> None:
    for name, leak, started in (("r1", 2**26, 1.7e9), ("r2", 0, 1.8e9)):
        make_run(id=name, leak_bytes=leak, started=started).begin(api, 30)
    text = page_of(api, "/compare?pick=r2&pick=r1")
    assert text.index('href="/runs/r1"') < text.index('href="/runs/r2"')
    assert 'id="chart-overlay"' in text and "By type" in text
    assert "Choose a run" in page_of(api, "/compare?before=r1")


def test_a_run_is_compared_with_the_previous_run_of_its_project(
    api: TestClient,
) -> None:
    for name, project, started in (
        ("r1", "erl", 1.7e9), ("r2", "erl", 1.8e9), ("other", "dqn", 1.85e9), ("r3", "erl", 1.9e9), ("r4", "erl", 2e9),
    ):  # fmt: skip
        body = {"id": name, "project": project, "name": f"{name}-name", "started_at": started}
        assert api.post("/api/v1/runs", json=body).status_code == 201
    api.post("/deletions", data={"pick": "r2"})
    page = page_of(api, "/runs/r3")
    assert 'href="/compare?before=r1&amp;after=r3"' in page
    assert "previous run (<bdi>r1-name</bdi>)" in page and 'href="/compare?after=r3"' in page
    for first in ("r1", "other"):
        assert "previous run" not in page_of(api, f"/runs/{first}")


def test_runs_that_are_not_listed_are_found_by_search(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakline_server.web.run_page.pages.MAX_PAGE", 3)
    for n in range(6):
        project = "erl" if n else "dqn"
        body = {"id": f"r{n}", "project": project, "name": f"run-{n}", "started_at": 1.7e9 + n}
        assert api.post("/api/v1/runs", json=body).status_code == 201
    options = re.compile(r'<option value="(\w+)"( selected)?')

    def listed(query: str) -> list[tuple[str, str]]:
        before, _, _ = page_of(api, f"/compare?{query}").partition("After\n")
        return [(run, "*" if chosen else "") for run, chosen in options.findall(before)]

    assert listed("") == [("r5", ""), ("r4", ""), ("r3", "")]
    assert "Only the newest 3 runs are listed" in page_of(api, "/compare")
    assert listed("q=project:dqn") == [("r0", "")]
    # The selected run stays in the list whatever is searched for; with both selected, the search still works.
    chosen = "q=run-1&before=r0&after=r5&search=1"
    assert listed(chosen) == [("r0", "*"), ("r5", ""), ("r1", "")]
    assert 'name="q" value="run-1"' in page_of(api, f"/compare?{chosen}")
    assert "No run matches this search." in page_of(api, "/compare?q=nothing-like-this")
    assert "started" in page_of(api, "/compare?q=started:soon")


@pytest.mark.parametrize(
    ("native", "said"),
    [
        (True, "Its native module scans the heap."),
        (
            "LEAKLINE_NATIVE=0 disables the native module",
            "in pure Python, and therefore less often: LEAKLINE_NATIVE=0",
        ),
        (None, "in the training process."),
    ],
)
def test_the_page_says_how_the_heap_is_scanned(native: object, said: str) -> None:
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
def test_modules_of_a_script_are_preloaded(path: str, entry: str, scripted_api: TestClient) -> None:
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


def test_memory_of_each_device_is_shown(api: TestClient, make_run: Any) -> None:
    told = json.loads((DATA / "gpu_two_h200.json").read_text(encoding="utf-8"))["expected"]
    make_run(extra={name: lambda _, value=told[name]: value for name in told}).begin(api, 12)
    page = page_of(api, "/runs/r1?tab=all")
    for device in (0, 1):
        for what in ("allocated", "reserved", "active", "outside torch", "this process, driver"):
            assert f"GPU {device} {what}" in DEVICE_LINE.findall(page)
    assert "torch emptied its cache and tried again twice and ran out of memory once." in page
    assert "None of these values includes memory outside torch" in page


COMMIT = "1f0c9a2b" * 5
FORGE = "https://github.com/a/b"


@pytest.mark.parametrize(
    "link",
    [
        None, 3, "", "profile", "/runs/r1", "//evil.example", "javascript:alert(1)", "data:text/html,x", "file:///etc",
        "https://", "http://[", "https://github.com@evil.example/", "https://a.example/ x", "https:\\\\a.example",
        "https://a.example/" + "x" * 3_000,
    ],
)  # fmt: skip
def test_only_web_addresses_are_links(link: object) -> None:
    assert web_link(link) is None


def test_a_link_shows_its_host() -> None:
    found = web_link("https://wandb.example:8443/run/7?x=1#top")
    assert found is not None and found.outside
    assert (found.text, found.href) == ("wandb.example", "https://wandb.example:8443/run/7?x=1#top")


@pytest.mark.parametrize(
    ("repository", "commit"),
    [
        (None, COMMIT), (7, COMMIT), ("", COMMIT), ("https://forge.example/a/b", COMMIT), ("/srv/git/a.git", COMMIT),
        ("javascript://github.com/a/b", COMMIT), ("https://github.com.evil.example/a/b", COMMIT),
        ("https://github.com/a/../b", COMMIT), ("https://github.com/a", COMMIT), ("https://github.com/a/b?x", COMMIT),
        (FORGE, None), (FORGE, ""), (FORGE, "main"), (FORGE, "1f0c9a"), (FORGE, "1F0C9A2B"), (FORGE, f"{COMMIT}/../x"),
    ],
)  # fmt: skip
def test_an_unknown_repository_or_no_commit_gives_no_link(repository: Any, commit: Any) -> None:
    assert commit_link({"repository": repository, "commit": commit}) is None


@pytest.mark.parametrize(
    "repository",
    [
        "https://github.com/erl/trading", "https://github.com/erl/trading.git", "https://me:secret@github.com/erl/trading.git/",
        "git@github.com:erl/trading.git", "ssh://git@github.com/erl/trading", "ssh://github.com:22/erl/trading",
    ],
)  # fmt: skip
def test_a_commit_on_a_known_forge_is_linked(repository: str) -> None:
    environment = {"repository": repository, "commit": COMMIT}
    assert commit_link(environment) == f"https://github.com/erl/trading/commit/{COMMIT}"
    at_line = code_link(environment, "training/erl_trainer.py:281")
    assert at_line == f"https://github.com/erl/trading/blob/{COMMIT}/training/erl_trainer.py#L281"


@pytest.mark.parametrize("location", [None, "", "trainer.py", "../x.py:3", "a b.py:3", "x.py:0x3"])
def test_a_location_outside_the_repository_gives_no_link(location: object) -> None:
    environment = {"repository": "https://gitlab.com/a/b/c", "commit": COMMIT}
    assert code_link(environment, location) is None


def test_the_head_of_a_run_links_to_its_commit(api: TestClient, make_run: Any) -> None:
    run = make_run()
    environment = {"commit": COMMIT, "repository": "https://codeberg.org/erl/trading.git"}
    for name, told in (("r1", environment), ("r2", {"commit": COMMIT})):
        header = {**run.header, "id": name, "environment": told}
        assert api.post("/api/v1/runs", json=header).status_code == 201
    linked, plain = api.get("/runs/r1?tab=all").text, api.get("/runs/r2?tab=all").text
    link = f'<a href="https://codeberg.org/erl/trading/commit/{COMMIT}" rel="noopener noreferrer">'
    assert link in linked
    assert "codeberg" not in plain and COMMIT[:10] in plain


def test_notes_are_listed_newest_first_with_their_links(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    wire = run.wire(0, 9)
    told = {"see <b>this</b>": "https://wandb.example/run", "later": "javascript:alert(1)"}
    note = {"sequence": 2, "kind": "note", "name": "note", "generation": 0, "phase": None}
    wire["events"] = [
        {**note, "time": run.started + i, "data": {"text": text, "link": link}}
        for i, (text, link) in enumerate(told.items())
    ]
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    said = {"notes": [{"text": "checked by hand", "link": "http://wiki.example/x"}]}
    assert api.patch("/api/v1/runs/r1", json=said).status_code == 200
    page = api.get("/runs/r1?tab=all").text
    notes = page[page.index('id="events"') :]
    notes = notes[: notes.index("</section>")]
    assert notes.index("checked by hand") < notes.index("later") < notes.index("see &lt;b&gt;this")
    assert (
        '<a href="http://wiki.example/x" rel="noopener noreferrer">checked by hand (wiki.example)</a>'
        in notes
    )
    assert 'href="javascript' not in page


HOSTILE = "<img src=x onerror=alert(1)>"


def shown(api: TestClient) -> str:
    """Return the text of the settings page as a person reads it."""
    page = page_of(api, "/settings")
    text = re.sub(r"<script.*?</script>|<head>.*?</head>", "", page, flags=re.DOTALL)
    text = re.sub(r"<wbr>", "", text)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def setting_row(api: TestClient, name: str) -> list[str]:
    """Return the cells of the table row that begins with this name."""
    for found in re.findall(r"<tr[^>]*>(.*?)</tr>", api.get("/settings").text, re.DOTALL):
        cells = re.findall(r"<td[^>]*>(.*?)</td>", found, re.DOTALL)
        words = [html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in cells]
        if words and words[0] == name:
            return words
    raise AssertionError(f"no row of {name}")


def test_no_secret_is_ever_shown(tmp_path: Path) -> None:
    secrets = {
        "LEAKLINE_WEBHOOK_URL": "https://hooks.example/services/T0/B0/VERYSECRET",
        "LEAKLINE_WEBHOOK_SECRET": "whsec_TUVNT1JZTEVBS01FTU9SWUxFQUtNRU1PUlk=",
        "LEAKLINE_APPRISE_URLS": "mailto://me:VERYSECRET@mail.example,json://VERYSECRET.example",
    }
    given = {**secrets, "LEAKLINE_DATABASE_URL": f"sqlite:///{tmp_path}/shown.db"}
    with TestClient(create_app(from_environment(given)), base_url="http://127.0.0.1") as api:
        whole = api.get("/settings").text
        for secret in secrets.values():
            assert secret not in whole
        assert "VERYSECRET" not in whole
        assert str(tmp_path) not in whole
        assert "shown.db" in shown(api)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:VERYSECRET@db.example:5432/leaks",
        "postgresql+psycopg://me@db.example:5432/leaks?password=VERYSECRET",
    ],
)
def test_a_database_is_called_by_host_and_name_without_credentials(url: str) -> None:
    engine = open_engine(url)
    assert disk_space.called(engine) == ("Postgres", "db.example:5432/leaks")


def test_the_retention_in_force_is_shown(tmp_path: Path) -> None:
    environment = {"LEAKLINE_KEEP_DAYS": "30,papers=forever"}
    config = from_arguments(environment, None, "0", f"sqlite:///{tmp_path}/x.db")
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        assert setting_row(api, "LEAKLINE_KEEP_DAYS")[1] == "30 days; papers: forever"
        assert setting_row(api, "LEAKLINE_THIN_AFTER_DAYS")[1] == "never"
        assert setting_row(api, "LEAKLINE_KEEP_BYTES")[1] == "no limit"


def test_every_setting_is_documented() -> None:
    documented = (DATA.parents[1] / "docs" / "settings.md").read_text()
    assert not [each for each in VARIABLES if f"`{each}`" not in documented]


def test_a_server_without_runs_says_so(api: TestClient) -> None:
    words = shown(api)
    assert "There are no projects yet." in words
    assert "No batch has arrived since the server started." in words
    assert re.search(r"The schema is \d{4}_\w+, the newest version", words)


def test_refused_batches_are_counted(
    api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.create(api)
    assert "No batch was rejected with status 429" in shown(api)
    with monkeypatch.context() as full:
        full.setattr("leakline_server.ingest.writer.MAX_WAITING_BATCHES", 0)
        assert api.post("/api/v1/runs/r1/batches", json=run.wire(0, 3)).status_code == 429
    assert "1 batch rejected with status 429" in shown(api)


def test_a_project_has_its_size_and_its_name_is_text(
    api: TestClient, make_run: Any, eventually: Callable[..., Any]
) -> None:
    run = make_run()
    assert api.post("/api/v1/runs", json={**run.header, "project": HOSTILE}).status_code == 201
    run.send(api, 0, 30)
    storage_sizes.measure(api.app.state.services.engine, time.time() + 120)  # type: ignore[attr-defined]
    assert "<img" not in api.get("/settings").text
    _, runs, size = setting_row(api, HOSTILE)
    assert runs == "1" and re.fullmatch(r"[\d.,]+ (B|KiB)", size) and not size.startswith("0 ")


def test_an_overview_counts_running_runs(api: TestClient, make_run: Any) -> None:
    engine = api.app.state.services.engine  # type: ignore[attr-defined]
    assert overview(engine) == Overview(0, 0)
    for name in ("r1", "r2"):
        run = make_run(id=name)
        run.create(api)
        run.send(api, 0, 3)
    assert overview(engine) == Overview(2, 2)
    api.patch("/api/v1/runs/r1", json={"state": "finished", "instance": "p1"})
    assert overview(engine) == Overview(1, 1)


def found_of(**other: Any) -> Found:
    """Return the data of a healthy server."""
    made = Found(
        version="1.0", config=Config(), database=("SQLite", "x.db"), schema="0009_a", newest_schema="0009_a",
        space=disk_space.Space(2**20, 4096, returns=True), projects=[ProjectSize("erl", 2, 4096)],
        overview=Overview(1, 1), waiting=0, room=1_024, is_writing=True,
        figures=WriterFigures(commits=10, commit_seconds=0.05, batches=10, snapshots=30),
        disk_is_full=False, refusals={}, damaged=0,
        removals=0, retainer=RetainerFigures(),
    )  # fmt: skip
    return replace(made, **other)


def answer(question: str, **other: Any) -> tuple[str, str, str]:
    """Return word, status and sentence of the answer to a question."""
    (tick,) = (t for t in settings_page(found_of(**other)).ticks if t.question == question)
    return tick.word, tick.status, tick.sentence


@pytest.mark.parametrize(
    ("question", "wrong", "status"),
    [
        ("Are batches written?", {"is_writing": False}, "confirmed"),
        ("Are batches written?", {"figures": WriterFigures(commits=4, failures=1)}, "suspected"),
        ("Are batches written?", {"figures": WriterFigures(commits=4, refused=True)}, "confirmed"),
        ("Are batches written?", {"disk_is_full": True}, "confirmed"),
        ("Are batches written?", {"figures": WriterFigures()}, "learning"),
        ("Is the server fast enough?", {"refusals": {"too_busy": 3}}, "watch"),
        ("Does the database schema match this version?", {"schema": "0010_b"}, "confirmed"),
        ("Does the database schema match this version?", {"schema": None}, "confirmed"),
        ("Is all stored data readable?", {"damaged": 2}, "confirmed"),
        ("Is free space returned to the disk?", {"space": disk_space.Space(2**20, 0, returns=False)}, "watch"),
        ("Who can reach this server?", {"config": Config(host="0.0.0.0", insecure=True)}, "suspected"),
        ("Who can reach this server?", {"config": Config(insecure=True)}, "watch"),
    ],
)  # fmt: skip
def test_health_says_what_is_wrong(question: str, wrong: dict[str, Any], status: str) -> None:
    assert answer(question)[1] == "ok"
    assert answer(question, **wrong)[1] == status


def test_the_page_of_postgres_says_what_is_unknown() -> None:
    there = {"database": ("Postgres", "db/leaks")}
    assert answer("Is free space returned to the disk?", **there)[0] == "by Postgres"
    assert "free space not known" in {
        tile.detail for tile in settings_page(found_of(**there)).tiles
    }


def test_a_project_that_was_not_measured_is_not_shown_as_empty() -> None:
    page = settings_page(found_of(projects=[ProjectSize("new", 1, 0)]))
    (section,) = (s for s in page.sections if s.id == "projects")
    assert section.table is not None
    assert {each.cells[2].text for each in section.table.rows} == {"not measured yet"}


def test_times_in_a_sentence_are_marked_up_and_the_rest_is_escaped() -> None:
    assert zoned("until 2026-01-31 12:10 UTC: <b>") == (
        'until <time datetime="2026-01-31T12:10Z" data-show="minute">2026-01-31 12:10 UTC</time>: &lt;b&gt;'
    )
    assert zoned("no 26-01-31 12:10 UTC & 1") == "no 26-01-31 12:10 UTC &amp; 1"


def test_every_page_links_to_the_settings(api: TestClient) -> None:
    for path in ("/", "/compare", "/incidents", "/alerts", "/settings"):
        assert 'href="/settings"' in api.get(path).text
    assert api.head("/settings").status_code == 200
