"""The page of the server itself: what it says, what it must never say, and that it says when something is wrong."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from leakline_server.app import create_app
from leakline_server.config import VARIABLES, Config, from_arguments, from_environment
from leakline_server.store.engine import open_engine
from leakline_server.store.maintenance import disk_space, storage_sizes
from leakline_server.store.maintenance.storage_sizes import Overview, ProjectSize, overview
from leakline_server.web.rendering.templating import zoned
from leakline_server.web.settings import Found, settings_page
from leakline_server.worker_thread import RetainerFigures, WriterFigures

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<img src=x onerror=alert(1)>"


def shown(api: TestClient, path: str = "/settings") -> str:
    """The words of a page, as somebody reads them."""
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    text = re.sub(r"<script.*?</script>|<head>.*?</head>", "", answer.text, flags=re.DOTALL)
    text = re.sub(r"<wbr>", "", text)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def row(api: TestClient, name: str) -> list[str]:
    """The fields of the row of a table that begins with this."""
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
def test_a_database_is_called_by_host_and_name_without_who_asks(url: str) -> None:
    engine = open_engine(url)
    assert disk_space.called(engine) == ("Postgres", "db.example:5432/leaks")


def test_the_retention_in_force_is_shown(tmp_path: Path) -> None:
    environment = {"LEAKLINE_KEEP_DAYS": "30,papers=forever"}
    config = from_arguments(environment, None, "0", f"sqlite:///{tmp_path}/x.db")
    with TestClient(create_app(config), base_url="http://127.0.0.1") as api:
        assert row(api, "LEAKLINE_KEEP_DAYS")[1] == "30 days; papers: for ever"
        assert row(api, "LEAKLINE_THIN_AFTER_DAYS")[1] == "never"
        assert row(api, "LEAKLINE_KEEP_BYTES")[1] == "no bound"


def test_every_setting_is_documented() -> None:
    documented = (ROOT / "docs" / "settings.md").read_text()
    assert not [each for each in VARIABLES if f"`{each}`" not in documented]


def test_a_server_without_runs_says_so(api: TestClient) -> None:
    words = shown(api)
    assert "There are no projects yet." in words
    assert "No batch has come since the start." in words
    assert re.search(r"schema \d{4}_\w+, the newest there is", words)


def test_a_batch_that_was_sent_away_is_told(
    api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.create(api)
    assert "None told to come back later" in shown(api)
    with monkeypatch.context() as full:
        full.setattr("leakline_server.ingest.writer.MAX_WAITING_BATCHES", 0)
        assert api.post("/api/v1/runs/r1/batches", json=run.wire(0, 3)).status_code == 429
    assert "1 batch told to come back later (429)" in shown(api)


def test_a_project_is_shown_with_its_size_and_is_never_markup(
    api: TestClient, make_run: Any, eventually: Callable[..., Any]
) -> None:
    run = make_run()
    assert api.post("/api/v1/runs", json={**run.header, "project": HOSTILE}).status_code == 201
    run.send(api, 0, 30)
    storage_sizes.measure(api.app.state.services.engine, time.time() + 120)  # type: ignore[attr-defined]
    assert "<img" not in api.get("/settings").text
    _, runs, size = row(api, HOSTILE)
    assert runs == "1" and re.fullmatch(r"[\d.,]+ (B|KiB)", size) and not size.startswith("0 ")


def test_an_overview_counts_what_is_running(api: TestClient, make_run: Any) -> None:
    engine = api.app.state.services.engine  # type: ignore[attr-defined]
    assert overview(engine) == Overview(0, 0)
    for name in ("r1", "r2"):
        run = make_run(id=name)
        run.create(api)
        run.send(api, 0, 3)
    assert overview(engine) == Overview(2, 2)
    api.patch("/api/v1/runs/r1", json={"state": "finished", "instance": "p1"})
    assert overview(engine) == Overview(1, 1)


def found(**other: Any) -> Found:
    """A server in order."""
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
    """Word, status and sentence."""
    (tick,) = (t for t in settings_page(found(**other)).ticks if t.question == question)
    return tick.word, tick.status, tick.sentence


@pytest.mark.parametrize(
    ("question", "wrong", "status"),
    [
        ("Is what arrives written?", {"is_writing": False}, "confirmed"),
        ("Is what arrives written?", {"figures": WriterFigures(commits=4, failures=1)}, "suspected"),
        ("Is what arrives written?", {"figures": WriterFigures(commits=4, refused=True)}, "confirmed"),
        ("Is what arrives written?", {"disk_is_full": True}, "confirmed"),
        ("Is what arrives written?", {"figures": WriterFigures()}, "learning"),
        ("Is it fast enough?", {"refusals": {"too_busy": 3}}, "watch"),
        ("Is the database that of this version?", {"schema": "0010_b"}, "confirmed"),
        ("Is the database that of this version?", {"schema": None}, "confirmed"),
        ("Can what is stored be read?", {"damaged": 2}, "confirmed"),
        ("Is free space given back?", {"space": disk_space.Space(2**20, 0, returns=False)}, "watch"),
        ("Who reaches this server?", {"config": Config(host="0.0.0.0", insecure=True)}, "suspected"),
        ("Who reaches this server?", {"config": Config(insecure=True)}, "watch"),
    ],
)  # fmt: skip
def test_health_says_what_is_wrong(question: str, wrong: dict[str, Any], status: str) -> None:
    assert answer(question)[1] == "ok"
    assert answer(question, **wrong)[1] == status


def test_postgres_says_what_it_does_not_know() -> None:
    there = {"database": ("Postgres", "db/leaks")}
    assert answer("Is free space given back?", **there)[0] == "by Postgres"
    assert "free space not known" in {tile.detail for tile in settings_page(found(**there)).tiles}


def test_a_project_that_nobody_has_counted_is_not_said_to_be_empty() -> None:
    page = settings_page(found(projects=[ProjectSize("new", 1, 0)]))
    (section,) = (s for s in page.sections if s.id == "projects")
    assert section.table is not None
    assert {each.cells[2].text for each in section.table.rows} == {"not counted yet"}


def test_a_time_in_a_sentence_is_one_for_scripts_and_the_rest_is_text() -> None:
    assert zoned("until 2026-01-31 12:10 UTC: <b>") == (
        'until <time datetime="2026-01-31T12:10Z" data-show="full">2026-01-31 12:10 UTC</time>: &lt;b&gt;'
    )
    assert zoned("no 26-01-31 12:10 UTC & 1") == "no 26-01-31 12:10 UTC &amp; 1"


def test_settings_are_found_from_every_page(api: TestClient) -> None:
    for path in ("/", "/compare", "/incidents", "/alerts", "/settings"):
        assert 'href="/settings"' in api.get(path).text
    assert api.head("/settings").status_code == 200
