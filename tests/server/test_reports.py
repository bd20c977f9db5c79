"""A run and a comparison as a file, as Markdown and as lines for an issue: the same as on the page, and only text."""

from __future__ import annotations

import base64
import csv
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import jinja2.meta
import pytest
from jinja2 import nodes
from markdown_it import MarkdownIt
from starlette.testclient import TestClient
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, Event, Holder, ProcessIdentity, Snapshot
from leakline.text_format import format_bytes, format_change
from leakline_server.app import create_app
from leakline_server.config import Config
from leakline_server.paths import TEMPLATES
from leakline_server.web.export import html_bundle
from leakline_server.web.rendering.page_contexts import file_name

SERVER = "http://127.0.0.1"
EVIL = "</script><img src=x onerror=alert(1)>`tick`|bar|[x](javascript:alert(1))"
OF_RUN = ("report.html", "report.md", "report.txt")
KINDS = {".html": "text/html", ".md": "text/markdown", ".txt": "text/plain"}


class Reader(HTMLParser):
    """Collects the elements of a page, its text, and the content of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "script":
            self.scripts.append((self.elements[-1][1], ""))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem == "script":
            attrs, held = self.scripts[-1]
            self.scripts[-1] = (attrs, held + data)
        elif self.cdata_elem is None:
            self.text += data

    def values(self, name: str) -> list[str]:
        return [attrs[name] for _, attrs in self.elements if name in attrs]

    def charts(self) -> list[Any]:
        return [json.loads(text) for attrs, text in self.scripts if "data-chart" in attrs]


def wait_for_verdict(api: TestClient, run: str, generations: int) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 30
    while api.get(f"/api/v1/runs/{run}/verdict").json().get("generations") != generations:
        assert time.monotonic() < deadline, run
        pause.wait(0.02)


@pytest.fixture(scope="module")
def leaking(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send a leaking run r1 and a steady run r2, and wait for their verdicts."""
    for name, leak, started in (("r1", 2**26, 1.7e9), ("r2", 0, 1.8e9)):
        phase_accounts = {"phase.evaluate.bytes": lambda n, kept=leak: kept if n % 3 == 2 else 0}
        make_run(id=name, leak_bytes=leak, started=started, extra=phase_accounts).begin(
            shared_api, 36
        )
    for name in ("r1", "r2"):
        wait_for_verdict(shared_api, name, 12)
    return shared_api


@pytest.fixture(scope="module")
def hostile(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send h1 and h2 with hostile names: run, project, tags, phase and the leaking type."""
    for name, leak in (("h1", 2**26), ("h2", 0)):
        kept = {f"type.app.{EVIL}.count": lambda n: 2 + 16 * (n // 3)}
        run = make_run(id=name, leak_bytes=leak, extra=kept)
        header = {**run.header, "name": EVIL, "project": EVIL, "tags": [EVIL[:60]], "unit": EVIL}
        assert shared_api.post("/api/v1/runs", json=header).status_code == 201
        wire = run.wire(0, 36)
        wire["columns"]["phase"] = [phase and EVIL for phase in wire["columns"]["phase"]]
        assert shared_api.post(f"/api/v1/runs/{name}/batches", json=wire).status_code == 200
    wait_for_verdict(shared_api, "h1", 12)
    return shared_api


@pytest.mark.parametrize("name", OF_RUN)
@pytest.mark.parametrize(
    "path", ("/runs/nobody/{}", "/compare/{}?before=nobody&after=nobody", "/compare/{}?before=r1")
)
def test_a_missing_run_is_an_error_page(leaking: TestClient, path: str, name: str) -> None:
    answer = leaking.get(path.format(name))
    assert answer.status_code == (404 if "nobody" in path else 422)
    assert answer.headers["content-type"].startswith("text/html")
    assert ("Run not found" if "nobody" in path else "after") in answer.text
    assert "content-disposition" not in answer.headers


@pytest.mark.parametrize("path", ("/runs/r1/", "/compare/"))
def test_each_report_has_its_content_type_and_files_have_names(
    leaking: TestClient, path: str
) -> None:
    for name in OF_RUN:
        answer = leaking.get(path + name, params={"before": "r1", "after": "r2"})
        assert answer.status_code == 200
        ending = name[name.index(".") :]
        assert answer.headers["content-type"] == f"{KINDS[ending]}; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        saved = answer.headers.get("content-disposition")
        words = "erl-before-fix" if "runs" in path else "before-fix-to-before-fix"
        named = f'attachment; filename="leakline-{words}{ending}"'
        assert saved == (None if ending == ".txt" else named)


@pytest.mark.parametrize("words", (("a/../b", 'c\\d"e\r\n'), ("ünï", "x" * 300), ("..", "")))
def test_a_file_name_is_valid_on_every_system(words: tuple[str, ...]) -> None:
    assert re.fullmatch(r"leakline(-[A-Za-z0-9._-]*[A-Za-z0-9_])?\.md", file_name(words, "md"))
    assert len(file_name(words, "md")) <= 83


@pytest.mark.parametrize(
    ("shown", "file"),
    [
        ("/runs/r1?tab=all", "/runs/r1/report.html"),
        ("/compare?before=r1&after=r2", "/compare/report.html?before=r1&after=r2"),
    ],
)
def test_the_file_shows_the_same_as_the_page(leaking: TestClient, shown: str, file: str) -> None:
    live, saved = Reader(leaking.get(shown).text), Reader(leaking.get(file).text)
    assert saved.charts() == live.charts()
    assert saved.charts()
    sections = [attrs["id"] for _, attrs in live.elements if "data-section" in attrs]
    assert sections == [attrs["id"] for _, attrs in saved.elements if "data-section" in attrs]
    cells = [[tag for tag, _ in page.elements if tag == "td"] for page in (saved, live)]
    assert len(cells[0]) == len(cells[1])
    classes = ("tile panel", "finding", "chip", "how")
    for name in classes:
        assert saved.values("class").count(name) == live.values("class").count(name), name


@pytest.mark.parametrize("path", ("/runs/r1/report.html", "/compare/report.html"))
def test_the_file_needs_no_server(leaking: TestClient, path: str) -> None:
    text = leaking.get(path, params={"before": "r1", "after": "r2"}).text
    found = Reader(text)
    for address in (*found.values("href"), *found.values("src"), *found.values("data-theme")):
        assert address.startswith(("#", "data:", f"{SERVER}/")), address
    assert not [tag for tag, _ in found.elements if tag in ("iframe", "object", "base")]
    forms = [attrs for tag, attrs in found.elements if tag == "form"]
    assert [attrs.get("method") for attrs in forms] == ["dialog"]
    names = found.values("id")
    assert len(names) == len(set(names))
    for name in ("data-ask", "data-copy", "data-lines", "data-live", "data-fragments"):
        assert not found.values(name), name
    assert 'src="' not in text
    # Every icon that is shown is in the file.
    shapes = {href for tag, attrs in found.elements if tag == "use" for href in [attrs["href"]]}
    assert shapes and shapes <= {f"#{name}" for name in found.values("id")}


def test_every_module_of_a_file_is_included(leaking: TestClient) -> None:
    found = Reader(leaking.get("/runs/r1/report.html").text)
    (modules,) = [json.loads(t) for a, t in found.scripts if a.get("type") == "importmap"]
    (entry,) = [text for attrs, text in found.scripts if attrs.get("type") == "module"]
    named = set(re.findall(r'"(leakline/[^"]+)"', entry))
    for address in modules["imports"].values():
        kind, data = address.split(",", 1)
        assert kind == "data:text/javascript;charset=utf-8;base64"
        code = base64.b64decode(data).decode()
        assert not re.search(r'from "\./|import "\./', code)
        named |= set(re.findall(r'(?:from|import) "(leakline/[^"]+)"', code))
    assert named == set(modules["imports"])
    assert {"leakline/report.js", "leakline/chart.js", "leakline/figure.js"} <= named


def test_only_the_scripts_of_the_file_may_run(leaking: TestClient) -> None:
    first, second = (Reader(leaking.get("/runs/r1/report.html").text) for _ in range(2))
    (policy,) = [a["content"] for _, a in first.elements if a.get("http-equiv")]
    nonce = re.search(r"script-src 'nonce-([\w-]+)';", policy)
    assert nonce and "unsafe" not in policy and policy.startswith("default-src 'none'")
    running = [attrs for attrs, _ in first.scripts if attrs["type"] != "application/json"]
    assert {attrs["nonce"] for attrs in running} == {nonce[1]}
    # The person who names a run cannot know the nonce.
    assert nonce[1] not in second.values("nonce")


def test_the_file_says_when_it_was_saved_by_what_and_from_where(
    database_url: str, make_run: Any
) -> None:
    config = Config(database_url=database_url, public_url="https://leaks.example")
    with TestClient(create_app(config), base_url=SERVER) as api:
        make_run().begin(api, 9)
        asked = {"process": "rank 0 main"}
        page = Reader(api.get("/runs/r1/report.html", params=asked).text)
        said = page.text
        assert re.search(r"Saved on \d{4}-\d\d-\d\d \d\d:\d\d UTC by Leakline 0\.", said)
        assert "from https://leaks.example." in said
        assert "https://leaks.example/runs/r1?process=rank+0+main" in page.values("href")
        assert not [href for href in page.values("href") if urlsplit(href).netloc == "127.0.0.1"]
        markdown = api.get("/runs/r1/report.md").text
        assert (
            "from https://leaks.example; the current page: https://leaks.example/runs/r1"
            in markdown
        )
        assert "- Page: https://leaks.example/runs/r1\n" in api.get("/runs/r1/report.txt").text


def test_a_run_without_snapshots_has_a_report(shared_api: TestClient, make_run: Any) -> None:
    make_run(id="joined").create(shared_api)
    for name in OF_RUN:
        answer = shared_api.get(f"/runs/joined/{name}")
        assert answer.status_code == 200
        shown = Reader(answer.text).text if name.endswith("html") else answer.text
        assert "nan" not in shown.lower() and "None" not in shown


def test_markdown_says_where_what_how_much_and_when(leaking: TestClient) -> None:
    verdict = leaking.get("/api/v1/runs/r1/verdict").json()
    text = leaking.get("/runs/r1/report.md").text
    assert text.startswith("# erl / before-fix\n\n**")
    assert verdict["summary"] in text
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", text, re.MULTILINE))
    growth = verdict["findings"][0]["growth_bytes_per_generation"]["estimate"]
    assert rows["how much"].startswith(format_change(growth))
    assert rows["how much"].endswith("per generation")
    assert rows["when"] and rows["where"] and rows["forecast"]
    assert "| `app.Env` | 2 | 178 | +176 | +16 |" in text
    assert "`app.Trainer.history[*]`" in text
    for sentence in (*verdict["findings"][0]["evidence"], *verdict["findings"][0]["advice"]):
        assert sentence.split("[")[0].split("_")[0] in text
    assert text.count("## Findings") == text.count("## The run") == 1


def test_the_phase_accounts_of_the_markdown_add_up(leaking: TestClient) -> None:
    phase_accounts = leaking.get("/api/v1/runs/r1/phases").json()
    text = leaking.get("/runs/r1/report.md").text
    part = text[text.index("## Memory by phase") : text.index("## Objects by type")]
    names = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
    assert sorted(names) == sorted(line["name"] for line in phase_accounts["lines"])
    whole = format_change(sum(phase_accounts["total"]))
    assert re.search(rf"^\| sum \| .* \| {re.escape(whole)} \| 100 % \|", part, re.MULTILINE)


EXAMPLE = f"""\
**Suspected.** evaluate keeps 16 Env per generation: 64.00 KiB per generation since generation 1

- Run: `erl / before-fix`, running, 12 of 25 generations, newest snapshot `generation 11: end`
- Where: `evaluate`, 100 % of the growth
- How much: +64.00 KiB (32.00 KiB to 96.00 KiB) per generation
- What: `app.Env` 2 → 178, 16 more per generation, 64.00 KiB per generation, held by `app.Trainer.history[*]`
- Since: generation 1
- Page: {SERVER}/runs/r1
"""


def test_the_report_to_paste_matches_the_example(leaking: TestClient) -> None:
    text = leaking.get("/runs/r1/report.txt").text
    state = leaking.get("/api/v1/runs/r1").json()["state"]
    assert text == EXAMPLE.replace(", running,", f", {state},")


def test_a_report_of_a_comparison_has_its_results(leaking: TestClient) -> None:
    asked = {"before": "r1", "after": "r2"}
    found = leaking.get("/api/v1/compare", params=asked).json()
    for name in ("report.md", "report.txt"):
        text = leaking.get(f"/compare/{name}", params=asked).text
        assert found["summary"].partition(":")[2] in text
        assert text.count(f"**{found['outcome'].capitalize()}**") == 1
        assert "-100.0 %" in text
        for key, title in (("gone", "Gone"), ("still", "Still there"), ("new", "New")):
            points = re.findall(rf"^- {title}: \w+ in ", text, re.MULTILINE)
            assert len(points) == len(found["findings"][key])
        assert f"{SERVER}/compare?before=r1&after=r2" in text
    after = found["memory_after"]
    sizes = [format_bytes(after[side]) for side in ("before", "after")]
    row = (
        f"| memory after 12 generations | {' | '.join(sizes)} | {after['change_percent']:+.1f} % |"
    )
    assert row in leaking.get("/compare/report.md", params=asked).text
    page = leaking.get("/compare", params=asked).text
    assert f"{' → '.join(sizes)} memory after 12 generations" in page
    rows = list(csv.DictReader(leaking.get("/compare/report.csv", params=asked).text.splitlines()))
    (told,) = [each for each in rows if each["what"] == "memory after 12 generations"]
    assert told["unit"] == "bytes"
    assert (float(told["before"]), float(told["after"])) == (after["before"], after["after"])
    assert [each["what"] for each in rows[:4]] == [
        "growth per generation", "memory after 12 generations", "peak memory", "time per generation",
    ]  # fmt: skip
    assert "- New: nothing" in leaking.get("/compare/report.md", params=asked).text
    assert len(leaking.get("/compare/report.txt", params=asked).text.splitlines()) <= 14


@pytest.mark.parametrize("path", ("/runs/h1/report.html", "/compare/report.html"))
def test_names_are_text_in_a_file(hostile: TestClient, path: str) -> None:
    text = hostile.get(path, params={"before": "h1", "after": "h2"}).text
    found = Reader(text)
    assert EVIL in found.text.replace("\u00a0", " ")
    assert not [tag for tag, _ in found.elements if tag == "img"]
    assert not [name for _, attrs in found.elements for name in attrs if name.startswith("on")]
    assert not [a for a in found.values("href") if a.lower().startswith("javascript")]
    kinds = [attrs["type"] for attrs, _ in found.scripts if attrs["type"] != "application/json"]
    assert kinds == ["text/javascript", "text/javascript", "importmap", "module"]
    assert found.charts()


@pytest.mark.parametrize("name", ("report.md", "report.txt"))
@pytest.mark.parametrize("path", ("/runs/h1/", "/compare/"))
def test_names_are_text_in_markdown(hostile: TestClient, path: str, name: str) -> None:
    text = hostile.get(path + name, params={"before": "h1", "after": "h2"}).text
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    parts = [part for token in tokens for part in token.children or ()]
    allowed = {"text", "text_special", "code_inline", "strong_open", "strong_close", "softbreak"}
    assert {part.type for part in parts} <= allowed
    assert "html_block" not in {token.type for token in tokens}
    assert EVIL in "".join(part.content for part in parts)
    # A bar in a name does not begin a column.
    widths = [len(list(row)) for row in _rows(tokens)]
    assert all(widths)


def _rows(tokens: list[Any]) -> Iterator[list[str]]:
    """Yield the cells of each table row, and check that every row has as many cells as the header."""
    width, row = 0, []
    for token in tokens:
        if token.type == "table_open":
            width = 0
        elif token.type == "tr_open":
            row = []
        elif token.type in ("td_open", "th_open"):
            row.append(token.type)
        elif token.type == "tr_close":
            width = width or len(row)
            assert len(row) == width
            yield row


def test_a_page_offers_its_reports(leaking: TestClient) -> None:
    for page, base, asked in (
        ("/runs/r1", "/runs/r1/", ""),
        ("/compare?before=r1&after=r2", "/compare/", "?before=r1&after=r2"),
    ):
        found = Reader(leaking.get(page).text)
        assert found.values("data-copy") == [f"{base}report.txt{asked}"]
        for name in OF_RUN:
            address = f"{base}{name}{asked}"
            assert address in found.values("href")
            assert leaking.get(address).status_code == 200
        assert [href for href in found.values("href") if href.startswith("/api/v1/")]


def test_a_file_shows_the_selected_rank(shared_api: TestClient, make_run: Any) -> None:
    make_run(id="ranks").begin(shared_api, 9)
    make_run(id="ranks", instance="p2", rank=1).send(shared_api, 0, 9)
    page = Reader(shared_api.get("/runs/ranks?process=rank+1+main").text)
    (address,) = [href for href in page.values("href") if "report.html" in href]
    chart = Reader(shared_api.get(address).text).charts()[0]
    own = {line["process"] for line in chart["lines"] if line["group"] != "total"}
    assert own == {"p2"}


def test_the_frame_uses_only_what_its_context_has() -> None:
    parsed = html_bundle.environment().parse((TEMPLATES / html_bundle.FRAME).read_text())
    assert not list(parsed.find_all(nodes.Import))
    used = jinja2.meta.find_undeclared_variables(parsed)
    assert used == {"title", *(field.name for field in fields(html_bundle.ReportFrame))}


GB, GIB, MIB = 1e9, 2**30, 2**20
GENERATIONS = 16
# (phase, kept type, count, bytes, holder) in each generation
Leaks = tuple[tuple[str, str, int, float, str], ...]
LEAKS: Leaks = (
    ("evaluate_population", "trading.TradingEnvironment", 16, 7.0 * GB, "trainer.Trainer.kept[*]"),
    ("train_population", "training.Loss", 384, 2.5 * GB, "trainer.Trainer.losses[*]"),
    ("evolve_population", "agents.DDPGAgent", 2, 0.6 * GB, "trainer.Trainer.old[*]"),
)
FIXED_AT = "training/erl_trainer.py:281"
COMMIT = "1f0c9a2b" * 5
ON_A_FORGE = {"repository": "git@github.com:erl/trading.git", "commit": COMMIT}
READ_AT = f"https://github.com/erl/trading/blob/{COMMIT}/{FIXED_AT.replace(':', '#L')}"


def batch(leaks: Leaks) -> Batch:
    private, counts, rows = 4.0 * GIB, {name: 20 for _, name, *_ in LEAKS}, []
    began = time.time() - 3600
    fix = Event(
        0, began, "fix", "detach losses", data={"phase": "train_population", "location": FIXED_AT,
        "promises": {"growth_bytes_per_generation": 500 * MIB}},
    )  # fmt: skip

    def take(
        kind: Any, generation: int | None, phase: str | None, phase_accounts: dict[str, float]
    ) -> None:
        n = len(rows)
        samples = {"process.anon_bytes": round(private), "process.rss_bytes": round(private)}
        samples |= {f"type.{name}.count": count for name, count in counts.items()} | phase_accounts
        found = tuple(
            Holder(n, name, path, counts[name] - 20, round(size / k))
            for _, name, k, size, path in leaks
            if path
        )
        holders = found if kind == "generation_end" else ()
        at = float(n)
        watched = (Event(0, began, "watch", name) for _, name, *_ in LEAKS)
        events = (fix, *watched) if n == 0 else ()
        rows.append(
            Snapshot(n, began + at, at, generation, phase, "", kind, samples, events, holders=holders)
        )  # fmt: skip

    take("baseline", None, None, {})
    for generation in range(GENERATIONS):
        phase_accounts: dict[str, float] = {}
        for phase, *_ in LEAKS:
            kept = [(name, n, size) for at, name, n, size, _ in leaks if at == phase]
            phase_accounts[f"phase.{phase}.bytes"] = round(sum(size for _, _, size in kept))
            phase_accounts[f"phase.{phase}.executions"] = 1
            for name, n, size in kept:
                counts[name] += n
                private += size
            take("phase_end", generation, phase, {})
        take("generation_end", generation, None, phase_accounts)
    return Batch(ProcessIdentity("p1", pid=1, host="h"), tuple(rows))


def report(api: TestClient, run: str, leaks: Leaks, **environment: str) -> str:
    new = {
        "id": run,
        "project": "erl",
        "name": "before-fix",
        "total": 25,
        "environment": environment,
    }
    assert api.post("/api/v1/runs", json=new).status_code == 201
    body = batch_to_wire(batch(leaks))
    assert api.post(f"/api/v1/runs/{run}/batches", json=body).status_code == 200
    wait_for_verdict(api, run, GENERATIONS)
    return api.get(f"/runs/{run}/report.md").text


def breakdown(text: str) -> list[list[str]]:
    """Return the rows of the table below Findings, without its header."""
    _, _, after = text.partition(
        "| class | component | phase | growth per generation | location |\n"
    )
    table = re.match(r"(?:\|.*\n)*", after)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()][1:]  # fmt: skip


def size_of(text: str) -> float:
    """Return the bytes of a size such as ``+6.52 GiB``."""
    number, unit = text.removeprefix("+").split()
    return float(number) * {"GiB": GIB, "MiB": MIB}[unit]


def test_a_run_without_leaks_has_no_breakdown(shared_api: TestClient) -> None:
    assert breakdown(report(shared_api, "healthy", ())) == []


@pytest.mark.parametrize(
    ("holder", "location"), [(LEAKS[2][4], f"`{LEAKS[2][4]}`"), ("", "–")], ids=["held", "unknown"]
)
def test_a_single_leak_has_no_sum(shared_api: TestClient, holder: str, location: str) -> None:
    leaks = ((*LEAKS[2][:4], holder),)
    ((grade, *_, said),) = breakdown(report(shared_api, f"single{len(holder)}", leaks))
    assert (grade, said) == ("MINOR", location)


@pytest.fixture(scope="module")
def three_leaks(shared_api: TestClient) -> str:
    """Return the report of the run `leaks`, whose repository is unknown."""
    return report(shared_api, "leaks", LEAKS)


def finding_of(api: TestClient, run: str, phase: str) -> dict[str, Any]:
    found = api.get(f"/api/v1/runs/{run}/verdict").json()["findings"]
    return {each["phase"]: each for each in found}[phase]


def test_each_leak_has_its_class_component_growth_and_location(three_leaks: str) -> None:
    rows = breakdown(three_leaks)
    assert [row[:3] for row in rows] == [
        ["CRITICAL", "`trading.TradingEnvironment`", "`evaluate_population`"],
        ["MAJOR", "`training.Loss`", "`train_population`"],
        ["MINOR", "`agents.DDPGAgent`", "`evolve_population`"],
        ["sum", "", ""],
    ]
    # What the fix of the phase named, or else the holder.
    assert [row[4] for row in rows] == [
        "`trainer.Trainer.kept[*]`", f"`{FIXED_AT}`", "`trainer.Trainer.old[*]`", "",
    ]  # fmt: skip
    sizes = [size_of(row[3]) for row in rows]
    assert sizes[:3] == [pytest.approx(size, rel=0.05) for _, _, _, size, _ in LEAKS]
    assert sizes[3] == pytest.approx(sum(sizes[:3]), rel=0.001)


def test_the_location_of_a_finding_links_to_its_line_everywhere(
    shared_api: TestClient, three_leaks: str
) -> None:
    """The link is in Markdown, in JSON, on the page and in the saved page; without a repository there is none."""
    text = report(shared_api, "forge", LEAKS, **ON_A_FORGE)
    assert [row[4] for row in breakdown(text)][1] == f"[`{FIXED_AT}`]({READ_AT})"
    told = finding_of(shared_api, "forge", "train_population")
    assert (told["location"], told["location_link"]) == (FIXED_AT, READ_AT)
    assert finding_of(shared_api, "forge", "evolve_population")["location"] is None
    for address in ("/runs/forge", "/runs/forge/report.html"):
        page = shared_api.get(address).text.replace("<wbr>", "")
        finding = page[page.index("<code>training.Loss</code>") :].split("</article>")[0]
        link = f'<a href="{READ_AT}" rel="noopener noreferrer"><code>{FIXED_AT}</code></a>'
        assert link in finding, address
    told = finding_of(shared_api, "leaks", "train_population")
    assert (told["location"], told["location_link"]) == (FIXED_AT, None)
    assert f'<a href="{READ_AT}"' not in shared_api.get("/runs/leaks").text
