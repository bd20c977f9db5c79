"""Hostile names are shown as text everywhere: more than fifty payloads in every field that users can set.

A server renders all pages and exports of one run per payload, which are parsed as browsers, Markdown readers and
spreadsheets parse them. One run with all payloads is opened in a real browser, along with its saved file, the lists,
and a leak whose type and phase have hostile names.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Page
from tests.browser.conftest import serving
from tests.browser.everything import NamedByOthers
from tests.browser.hostile_labels import ALIVE, LABELS
from tests.browser.patience import eventually, open_all, text_of
from tests.browser.training import patch, post

from leakline.transport.http_delivery import request_json
from leakline_server.text_cleaning import without_control

pytestmark = pytest.mark.long

NOW = 1_760_000_000.0
HTML = ("/runs/{0}?tab=all", "/runs/{0}/report.html")
MARKDOWN = ("/runs/{0}/report.md",)
TEXT = ("/runs/{0}/report.txt",)
# Two runs are rendered by the same macros, so only every sixth payload is tested.
HTML_OF_TWO = (
    "/compare?before=f-0&after={0}",
    "/compare/report.html?before=f-0&after={0}",
    "/overlay?run=f-0&run={0}",
)
MARKDOWN_OF_TWO = ("/compare/report.md?before=f-0&after={0}",)
TEXT_OF_TWO = ("/compare/report.txt?before=f-0&after={0}",)
# Minimum number of times that the page of a run shows its label.
ONCE_AT_LEAST = 20


def header(run: str, label: str, **more: Any) -> dict[str, Any]:
    """Return a run header with the label in every field about run, machine and build."""
    return {
        "id": run, "project": label, "name": label, "unit": label, "started_at": NOW, "tags": [label[:64]],
        "phases": [label], "config": {label: label, "nested": {label: [label, {label: label}]}},
        "environment": {
            "host": label, "commit": label, "repository": label, "command_line": [label, label], "dirty": label,
            "packages": {label: label}, "python": label, "native": label, "branch": label, "cuda": label, label: label,
        },
        "process": {"instance": "p1", "host": label, "role": label}, **more,
    }  # fmt: skip


def events(label: str, sequence: int = 0) -> list[dict[str, Any]]:
    """Return one event of each kind with the label in every text field."""
    said = dict.fromkeys(
        ("text", "link", "error", "because", "location", "phase", "rejected", "unit"), label
    )
    kinds: dict[str, dict[str, Any]] = {
        "mark": {}, "note": {}, "exception": {}, "warning": {},
        "fix": {"promises": {f"count:{label}": 3, label: 1}},
        "cleanup": {"counts": {label: [5, 3]}, "freed_bytes": 5, "seconds": 1.0},
        "register_cleanup": {"when": [label, label], "on_request": True},
        "expect": {"low": 2, "high": 2, "after": label},
        "track": {"capacity": 5}, "watch": {}, "gauge": {}, "collection": {},
        "log": {"lines": [label]},
    }  # fmt: skip
    at = {"sequence": sequence, "time": NOW, "name": label, "generation": 1, "phase": label}
    return [{**at, "kind": kind, "data": said | data} for kind, data in kinds.items()]


def batch(label: str, instance: str = "p1", rank: int = 0, **more: Any) -> dict[str, Any]:
    count = 4
    column: dict[str, Any] = {
        "time": [NOW + i for i in range(count)], "monotonic": [float(i) for i in range(count)],
        "generation": list(range(count)), "phase": [label, None] * 2, "label": [label] * count,
        "kind": ["phase_end", "generation_end"] * 2,
        "series": {
            "process.rss_bytes": [2**30 + i * 2**26 for i in range(count)],
            **{f"{kind}.{label}.{what}": [1 + i for i in range(count)] for kind, what in (
                ("type", "count"), ("type", "bytes"), ("store", "entries"), ("phase", "bytes"))},
            f"gauge.{label}": [1, 2, 3, 4],
        },
    }  # fmt: skip
    row = {"sequence": 0, "type": label}
    return {
        "version": 1, "first_sequence": 0, "count": count, "columns": column, "events": events(label),
        "process": {"instance": instance, "rank": rank, "pid": 1, "host": label, "role": label},
        "lost": {label: 3},
        "large_objects": [row | {"bytes": 2**24, "detail": label, "holder": label}],
        "holders": [row | {"path": label, "count": 3, "bytes_each": 5}],
        "census": [{"sequence": 0, "mode": "full", "coverage": 1.0, "objects": 5, "types": [[label, 3, 300]]}],
        **more,
    }  # fmt: skip


def end(label: str, instance: str = "p1") -> dict[str, Any]:
    link = "https://" + "".join(label.split())
    notes = [
        {"text": label, "link": link},
        {"text": label, "link": f"https://a.example/{link[8:]}"},
    ]
    return {"state": "failed", "reason": label, "instance": instance, "notes": notes}


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server with one run per label, and one run with all labels in processes, attempts, notes and settings."""
    folder = Path(tmp_path_factory.mktemp("fields"))
    with serving(folder, LEAKLINE_WEBHOOK_ALLOW="127.0.0.0/8") as address:
        runs = f"{address}/api/v1/runs"
        for n, label in enumerate(LABELS):
            post(runs, header(f"f-{n}", label))
            post(f"{runs}/f-{n}/batches", batch(label))
            patch(f"{runs}/f-{n}", end(label))
            who = {"instance": f"p{n}", "rank": n, "host": label, "role": "main"}
            # Only the values of the first process are used.
            everything = {} if n else {each: {each: each} for each in LABELS}
            more = {
                "process": who,
                "started_at": NOW + 3_600 * n,
                "project": "all",
                "config": everything,
            }
            post(runs, header("all", label, **more))
            post(f"{runs}/all/batches", batch(label, f"p{n}", n))
            patch(f"{runs}/all", end(label, f"p{n}"))
            if n < 16:
                hook = {"url": "http://127.0.0.1:9/", "name": label[:80]}
                post(f"{address}/api/v1/webhooks", hook)
            # Rule names appear in messages, so names with invisible characters are refused.
            if label.isprintable():
                never = {"name": label, "series": "process.rss_bytes", "above": 1e15}
                post(f"{address}/api/v1/rules", never)
        leaking = NamedByOthers(address, "leak")
        leaking.start()
        leaking.run_generations(12)
        eventually(lambda: request_json(address, "GET", "/runs/leak/verdict")["findings"])
        yield address


class Browser(HTMLParser):
    """A parser that collects active content and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[str] = []
        self.said: list[str] = []
        self._in: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        is_data = found.get("type") == "application/json"
        self._in = tag if tag in ("script", "style") and not is_data else None
        leads = [found.get(name) or "" for name in ("href", "src", "action", "formaction", "data")]
        to = ["".join(each.split()).lower() for each in leads]
        if (
            tag in ("iframe", "object", "embed", "base")
            or ALIVE in (found.get("class") or "").split()
            or any(name.startswith("on") or name == "srcdoc" for name in found)
            or any(each.startswith(("javascript:", "data:text", "vbscript:")) for each in to)
        ):
            self.alive.append(self.get_starttag_text() or tag)

    def handle_endtag(self, tag: str) -> None:
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in is None:
            self.said.append(data)
        elif ALIVE in data:
            self.alive.append(f"{self._in}: {data[:200]}")


def without_blanks(text: str) -> str:
    return "".join(text.split())


def kept(text: str) -> str:
    """Return the stored form of a name, without characters that reorder the text around it."""
    return without_blanks(without_control(text))


NUMBERS = range(len(LABELS))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_label_is_shown_as_text_in_every_field(hostile_server: str, number: int) -> None:
    run, label = f"f-{number}", LABELS[number]
    also = number % 6 == 0
    for path in HTML + HTML_OF_TWO * also:
        page = Browser()
        page.feed(text_of(hostile_server + path.format(run)))
        assert page.alive == [], path
        if path == HTML[0]:
            text = without_blanks("".join(page.said))
            assert text.count(kept(label)) >= ONCE_AT_LEAST
    for path in MARKDOWN + MARKDOWN_OF_TWO * also:
        found = (
            MarkdownIt("commonmark")
            .enable("table")
            .parse(text_of(hostile_server + path.format(run)))
        )
        parts = [part for token in found for part in (token, *(token.children or ()))]
        assert not {p.type for p in parts} & {"html_block", "html_inline", "image"}, path
        links = [str(p.attrGet("href")) for p in parts if p.type == "link_open"]
        assert all(each.startswith(("http://", "https://", "#")) for each in links), links
    for path in TEXT + TEXT_OF_TWO * also:
        for line in text_of(hostile_server + path.format(run)).splitlines():
            assert without_control(line) == line, path
    table = text_of(f"{hostile_server}/api/v1/runs/{run}/export.csv")
    for row in csv.reader(io.StringIO(table, newline="")):
        assert not [c for c in row if c.strip()[:1] in (*"=+-@＝＋－＠",) and not is_number(c)]
    whole = json.loads(text_of(f"{hostile_server}/api/v1/runs/{run}"))
    assert whole["unit"] == without_control(label) and whole["notes"][0]["text"]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_the_parser_of_this_test_detects_active_content() -> None:
    for label in ('<b class=hostile>x</b>', '<a href=" java\nscript:x">', "<i onclick=x>", "<iframe>",
                  "<script>window.hostile=1</script>"):  # fmt: skip
        page = Browser()
        page.feed(f"<main>{label}</main>")
        assert page.alive, label


def must_be_text(page: Page) -> None:
    open_all(page)
    assert page.evaluate(f"window.{ALIVE}") is None
    assert page.locator(f".{ALIVE}").count() == 0
    made = "main :is(iframe, img, object, script:not([type='application/json']))"
    assert page.locator(made).count() == 0


Open = Callable[..., Page]
# Minimum number of times that each page shows each of these labels.
EVERYWHERE = {
    "/runs/all?tab=all": (LABELS, 3),
    "/compare": (LABELS, 1),
    "/settings": (LABELS[:16], 1),
    "/alerts": (tuple(label for label in LABELS if label.isprintable()), 1),
}
LEAKS = (
    "/runs/leak?tab=all",
    "/compare?before=leak&after=all",
    "/overlay?run=leak&run=all",
    "/incidents",
)
# Text of a page, folded or not, without the numbers of its charts.
SAID = """() => {
  const copy = document.querySelector("main").cloneNode(true);
  for (const each of copy.querySelectorAll("script, noscript")) each.remove();
  return copy.textContent;
}"""


def main_text(page: Page) -> str:
    return without_blanks(page.evaluate(SAID))


@pytest.mark.parametrize("path", EVERYWHERE)
def test_every_name_is_shown_unchanged(hostile_server: str, open_page: Open, path: str) -> None:
    page = open_page(path, address=hostile_server)
    must_be_text(page)
    labels, least = EVERYWHERE[path]
    text = main_text(page)
    assert not [label for label in labels if text.count(kept(label)) < least]


# Found by its project, since with more than fifty runs a silent one is not on the first page.
@pytest.mark.parametrize("path", ["/?q=project:erl-trading", *LEAKS])
def test_a_type_named_like_markup_is_shown_as_text(
    hostile_server: str, open_page: Open, path: str
) -> None:
    page = open_page(path, address=hostile_server)
    must_be_text(page)
    # The list shows only the sentence, with the part of a type after its last dot.
    name = NamedByOthers.type_name if path in LEAKS else "keeps 16 hostile=1>"
    if "overlay" not in path:
        assert without_blanks(name) in main_text(page)


def test_a_search_for_a_name_shows_it_as_it_was_typed(hostile_server: str, open_page: Open) -> None:
    page = open_page("/", address=hostile_server)
    for label in LABELS[::9]:
        page.get_by_role("searchbox").fill(label)
        page.get_by_role("searchbox").press("Enter")
        page.wait_for_load_state()
        assert page.evaluate(f"window.{ALIVE}") is None
        assert page.locator(f".{ALIVE}").count() == 0
        assert page.get_by_role("searchbox").input_value() == without_control(label)


@pytest.mark.parametrize(
    "path",
    [
        "/runs/all/report.html",
        "/runs/leak/report.html",
        "/compare/report.html?before=leak&after=all",
    ],
)
def test_no_name_becomes_active_in_a_saved_file(
    hostile_server: str,
    open_far_away: Callable[..., Page],
    tmp_path: Path,
    path: str,
) -> None:
    file = tmp_path / "report.html"
    file.write_text(text_of(hostile_server + path))
    must_be_text(open_far_away(file))
