"""Two real processes of one run, of which one leaks: the page says which, and how fast each of them grows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.everything import request_json

Open = Callable[..., Page]
PATIENCE_MS = 60_000
GENERATIONS = 14
KEPT_MIB = 8
# As torchrun starts it: the same program with another RANK. Both wait for each other, as ranks do.
SCRIPT = f"""
import os, sys, leakline

class Batch:
    def __init__(self):
        self.data = bytearray({KEPT_MIB} << 20)

kept = []
run = leakline.init(project="ranks", watch=[Batch])
for generation in range({GENERATIONS}):
    with run.generation(generation), run.phase("train"):
        batch = Batch()
        if os.environ["RANK"] == "1":
            kept.append(batch)
    print("ready", flush=True)
    sys.stdin.readline()
run.finish()
"""


@pytest.fixture(scope="module")
def ranks(server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(SCRIPT)
    started = [_start(folder, server, rank) for rank in (0, 1)]
    for _ in range(GENERATIONS):
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in started:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
    for each in started:
        _, errors = each.communicate(timeout=120)
        assert each.returncode == 0, errors
    return "two-ranks"


def _start(folder: Path, server: str, rank: int) -> subprocess.Popen[str]:
    outside = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
    own = {
        "LEAKLINE_SERVER": server, "LEAKLINE_RUN_ID": "two-ranks", "LEAKLINE_DIR": f"{folder}/{rank}",
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(folder / "train.py")], cwd=folder, text=True, env=outside | own,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def rows(page: Page) -> list[dict[str, Any]]:
    """Of the table of processes: head -> text."""
    table = page.locator("#processes table")
    heads = table.locator("thead th").all_text_contents()
    found = [row.locator("td").all_text_contents() for row in table.locator("tbody tr").all()]
    return [dict(zip(heads, map(str.strip, row), strict=True)) for row in found]


def chart_of(page: Page) -> str:
    return page.locator('[data-part="trend.data"] script').text_content() or ""


def test_the_page_marks_the_rank_that_leaks_and_tells_the_growth_of_both(
    server: str, ranks: str, open_page: Open
) -> None:
    page = open_page(f"/runs/{ranks}")
    expect(page.locator("#processes a[href='#findings']")).to_have_count(1, timeout=PATIENCE_MS)
    # The lines are those of the rank that leaks, with where it began.
    expect(page.locator(".filters [aria-current=true]")).to_have_text("rank 1 main")
    assert "leak starts" in chart_of(page)
    expect(page.locator("#trend .note")).to_contain_text("of rank 1 main, which is shown")
    healthy, leaking = rows(page)
    growth = "growth per generation"
    assert healthy["finding"] == "–"
    assert leaking["finding"] in ("Leaking", "Suspected leak")
    assert "MiB" in leaking[growth]
    assert leaking[growth] != healthy[growth]
    expect(page.locator("#findings")).to_contain_text("rank 1 main")

    # The same as the API says.
    told = request_json(server, "GET", f"/runs/{ranks}")
    whole = told["growth_bytes_per_generation"]["estimate"]
    each = [p["growth_bytes_per_generation"] for p in told["processes"]]
    assert each[1]["estimate"] == pytest.approx(KEPT_MIB << 20, rel=0.2)
    assert abs(each[0]["estimate"]) < 1 << 20
    assert sum(growth["estimate"] for growth in each) == pytest.approx(whole)
    verdict = request_json(server, "GET", f"/runs/{ranks}/verdict")
    named = {f["fingerprint"] for f in verdict["findings"] if f["process"] == "rank 1 main"}
    assert told["processes"][0]["findings"] == []
    assert set(told["processes"][1]["findings"]) <= named
    assert told["processes"][1]["findings"]


def test_the_rank_that_does_not_leak_is_shown_without_the_leak_of_the_other(
    ranks: str, open_page: Open
) -> None:
    page = open_page(f"/runs/{ranks}?process=rank 0 main")
    expect(page.locator("#processes a[href='#findings']")).to_have_count(1, timeout=PATIENCE_MS)
    expect(page.locator(".filters [aria-current=true]")).to_have_text("rank 0 main")
    assert "leak starts" not in chart_of(page)
    assert '"cone":null' in chart_of(page).replace(" ", "")


def test_on_a_phone_the_growth_of_each_rank_is_within_reach(ranks: str, open_page: Open) -> None:
    page = open_page(f"/runs/{ranks}", width=390)
    page.locator("#processes").scroll_into_view_if_needed()
    for row in page.locator("#processes tbody tr").all():
        expect(row.locator("td").nth(2)).to_be_in_viewport(ratio=1)
    expect(page.locator("#processes a[href='#findings']")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
