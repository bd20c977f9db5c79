"""The main answers of the pages, for inputs that once got a wrong or contradictory one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.analysis.builder import (
    EVALUATE,
    GIB,
    MIB,
    TRAIN,
    Leak,
    Training,
    kept_environments,
)
from tests.browser.patience import draw_everything, eventually, fits
from tests.browser.test_page_content import chart
from tests.browser.training import patch, post
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, Snapshot, header_to_wire
from leakline.transport.http_delivery import request_json

Open = Callable[..., Page]
ALL = "?tab=all"
# Duration of a generation in seconds, as in a long training.
SECONDS = 60.0


def report(
    server: str,
    *trainings: Training,
    limit: float = 192 * GIB,
    seconds: float = SECONDS,
    more: Callable[[Snapshot], Mapping[str, float]] = lambda snapshot: {},
) -> str:
    """Send the recordings of simulated trainings of one run as if the last snapshot had just been taken."""
    run = trainings[0].run
    last = max(b.snapshots[-1].time for training in trainings for b in training.batches())
    # The builder takes five snapshots per generation, a second apart.
    scale, now = seconds / 5, time.time()

    def moved(snapshot: Snapshot) -> Snapshot:
        at = now - (last - snapshot.time) * scale
        samples = {**snapshot.samples, "cgroup.limit_bytes": limit, **more(snapshot)}
        return replace(snapshot, time=at, monotonic=at, samples=samples)

    header = replace(trainings[0].header(), started_at=now - last * scale)
    post(f"{server}/api/v1/runs", header_to_wire(header))
    for training in trainings:
        for batch in training.batches():
            sent = Batch(batch.process, tuple(map(moved, batch.snapshots)))
            post(f"{server}/api/v1/runs/{run}/batches", batch_to_wire(sent))
    return run


def verdict_of(server: str, run: str, generations: int) -> dict[str, Any]:
    """Return the verdict once it covers all generations of the run."""
    path = f"/runs/{run}/verdict"
    eventually(lambda: request_json(server, "GET", path)["generations"] >= generations)
    found: dict[str, Any] = request_json(server, "GET", path)
    return found


def children(snapshot: Snapshot) -> dict[str, float]:
    """Return the series of two loader workers, one of which keeps 4.26 MiB per generation."""
    leaking = (80 + 4.26 * (snapshot.generation or 0)) * MIB
    prefix = "children.process.loader_worker"
    return {
        "children.count": 2, "children.uss_bytes": leaking + 80 * MIB,
        f"{prefix}-0.uss_bytes": leaking, f"{prefix}-1.uss_bytes": 80 * MIB,
    }  # fmt: skip


@pytest.fixture(scope="module")
def runs(server: str) -> str:
    """Send one run for each kind of question and return the server's address."""
    envs, env_type = kept_environments, "trading.TradingEnvironment"
    elsewhere = (Leak(EVALUATE, 0, {env_type: 16}), Leak(TRAIN, 11 * MIB))
    well = Training(run="fixed", generations=24, leaks=(envs(0.78 * MIB),))
    report(
        server,
        Training(run="ahead", generations=12, total=1000, leaks=(envs(57.27 * MIB),)),
        limit=23.54 * GIB,
    )
    report(server, Training(run="workers", generations=24), more=children)
    report(server, Training(run="elsewhere", generations=24, leaks=elsewhere))
    report(
        server,
        Training(run="ranks", generations=24),
        Training(
            run="ranks", generations=24, rank=1, instance="p2", seed=2, leaks=(envs(7.62 * MIB),)
        ),
    )
    report(server, Training(run="before", generations=24, leaks=(envs(12 * MIB),)))
    report(server, well)
    report(server, Training(run="cut-short", generations=5, leaks=(envs(12 * MIB),)))
    for run, generations in (("ahead", 12), ("cut-short", 5)):
        verdict_of(server, run, generations)
    for run in ("workers", "elsewhere", "ranks", "before", "fixed"):
        verdict_of(server, run, 24)
    for run in ("cut-short", "before", "fixed"):
        patch(f"{server}/api/v1/runs/{run}", {"state": "finished", "instance": "p1"})
    return server


def plain(text: str) -> str:
    """Return the text with single ordinary spaces."""
    return " ".join(text.split())


def figure(page: Page, label: str) -> str:
    found = page.locator(".verdict .figures div").filter(has=page.locator("dt", has_text=label))
    return plain(found.locator("dd").inner_text())


def row_of(page: Page, run: str) -> Any:
    return page.locator(".runs tr").filter(has=page.get_by_role("link", name=run, exact=True))


def bars(page: Page, part: str) -> list[tuple[str, str]]:
    """Return (name, amount) of each bar of a panel, in order."""
    found = page.locator(f'[data-part="{part}"] .bars > li').all()
    return [
        (bar.locator("> :first-child").inner_text(), bar.locator(".number").inner_text())
        for bar in found
    ]


def lines_of(drawn: Mapping[str, Any], group: str) -> dict[str, list[float]]:
    return {line["name"]: line["y"] for line in drawn["lines"] if line["group"] == group}


def test_oom_within_the_planned_total_is_forecast_however_far_ahead(
    runs: str, open_page: Open
) -> None:
    page = open_page("/runs/ahead")
    said = figure(page, "OOM")
    assert re.match(r"OOM near generation 4\d\d of 1,000 at this rate \(\d+ to \d+\), about", said)
    near = re.search(r"generation 4\d\d of 1,000", said)
    assert near is not None
    drawn = chart(page, "trend")
    (limit,) = (level["value"] for level in drawn["levels"])
    assert drawn["cone"]["estimate"][-1] == pytest.approx(limit, rel=0.02)
    page = open_page("/?q=ahead")
    expect(row_of(page, "ahead").locator(".out")).to_have_text(f"Near {near.group()}")


def test_the_first_chart_is_the_sum_over_processes_and_rises_with_the_leak(
    runs: str, open_page: Open
) -> None:
    page = open_page("/runs/workers")
    expect(page.locator("#verdict-sentence")).to_contain_text("child processes")
    drawn = chart(page, "trend")
    assert drawn["groups"][0]["id"] == "total"
    layers = lines_of(drawn, "total")
    assert list(layers) == ["rank 0 main", "child processes"]
    grown = {name: y[-1] - y[6] for name, y in layers.items()}
    assert grown["child processes"] == pytest.approx(17 * 4.26 * MIB, rel=0.01)
    assert grown["child processes"] > 5 * abs(grown["rank 0 main"])
    assert next(band["group"] for band in drawn["bands"]) == "total"
    name, amount = bars(page, "processes")[0]
    assert (name, amount) == ("loader_worker-0", "+4.26 MiB")
    assert figure(page, "GROWTH").startswith("+4.26 MiB per generation")
    # The list has the same number, which is not that of private memory.
    row = row_of(open_page("/?q=workers"), "workers")
    expect(row.locator("td[data-label=Growth]")).to_have_text("+4.26 MiB")


def test_one_line_explains_why_cause_and_phase_differ(runs: str, open_page: Open) -> None:
    page = open_page("/runs/elsewhere")
    expect(page.locator("#verdict-sentence")).to_contain_text("evaluate_population keeps 16")
    growth = page.locator('[data-part="growth"]')
    assert bars(page, "growth")[0][0] == "train_population"
    expect(growth.locator(".note")).to_contain_text("Created in evaluate_population")
    expect(growth.locator(".note")).to_contain_text("train_population")


def test_the_leaking_rank_is_named_and_measured(runs: str, open_page: Open) -> None:
    page = open_page("/runs/ranks")
    sentence = page.locator("#verdict-sentence")
    expect(sentence).to_contain_text("rank 1")
    expect(sentence).not_to_contain_text("rank 0")
    (first, most), (second, least) = bars(page, "processes")
    assert (first, second) == ("rank 1 main", "rank 0 main")
    assert figure(page, "GROWTH").startswith(most)
    assert "KiB" in least
    expect(page.locator('[data-part="processes"] [aria-current]')).to_have_text("rank 1 main")


def test_a_leak_has_the_same_count_and_rate_everywhere(runs: str, open_page: Open) -> None:
    page = open_page("/runs/before" + ALL)
    sentence = plain(page.locator("#verdict-sentence").inner_text())
    assert "keeps 16 TradingEnvironment per generation" in sentence
    rate = figure(page, "GROWTH").split(" per ")[0]
    assert f"{rate.removeprefix('+')} per generation" in sentence
    first = page.locator(".finding .suspects > span").first
    expect(first).to_have_text(f"type trading.TradingEnvironment +16, {rate} per generation")
    types = page.locator("[data-part='types.table'] tbody tr").first.locator("td").all_inner_texts()
    assert (types[6], plain(types[8])) == ("+16", rate)
    # The explained share is the same everywhere.
    share = figure(page, "EXPLAINED").split(" of ")[0]
    page.locator(".finding details").first.locator("summary").click()
    evidence = page.locator(".finding .evidence").first
    expect(evidence).to_contain_text(f"Measured objects explain {share} of the growth:")


def test_types_are_rated_by_the_bytes_they_explain(runs: str, open_page: Open) -> None:
    page = open_page("/runs/before?tab=objects")
    rows = page.locator("[data-part='types.table'] tbody tr")
    expect(rows.first).to_contain_text("trading.TradingEnvironment")
    expect(rows.first.locator("[data-status]").first).to_contain_text("problem")
    # Grows by 32 in each generation, but each is small.
    dicts = rows.filter(has=page.get_by_role("cell", name="dict", exact=True))
    expect(dicts.locator("[data-status]").first).to_contain_text("expected")


def test_severity_is_the_time_until_memory_runs_out(runs: str, open_page: Open) -> None:
    page = open_page("/?q=project:p&group=none")
    expect(row_of(page, "ahead").locator("[data-priority]")).to_have_text("critical")
    expect(row_of(page, "ranks").locator("[data-priority]")).to_have_count(0)
    order = page.locator(".runs .name").all_text_contents()
    assert order.index("ahead") < order.index("ranks")
    page = open_page("/runs/ahead")
    expect(page.locator(".finding [data-priority]").first).to_have_text("critical")
    page = open_page("/runs/ranks")
    expect(page.locator(".finding [data-priority]").first).to_have_text("minor")


def test_a_finished_run_says_what_was_missing_for_a_verdict(runs: str, open_page: Open) -> None:
    page = open_page("/runs/cut-short")
    said = page.locator(".verdict p.small").first
    expect(said).to_contain_text(
        "Memory kept growing as if there were a leak, but not for long enough"
    )
    for word in ("will show whether", "more to go", "so far"):
        expect(page.locator(".verdict")).not_to_contain_text(word)


def test_the_score_of_forecasts_agrees_with_its_table(runs: str, open_page: Open) -> None:
    page = open_page("/runs/before?tab=info")
    section = page.locator("#forecasts")
    counted = re.match(r"(\d+) forecasts could be checked", section.locator(".note").inner_text())
    held = re.search(
        r"(\d+) intervals? contained the actual memory", section.locator(".note").inner_text()
    )
    assert counted and held
    leads = [row.locator("td").all_inner_texts() for row in section.locator("tbody tr").all()]
    per_lead = [re.fullmatch(r"(\d+) of (\d+)", row[2]) for row in leads]
    within, made = (sum(int(each[n]) for each in per_lead if each) for n in (1, 2))
    assert (held[1], counted[1]) == (str(within), str(made))
    assert [row[2] for row in leads].count("yes") == within


def test_a_run_has_one_last_seen_time(server: str, open_page: Open) -> None:
    report(server, Training(run="late", generations=4), seconds=5)
    verdict_of(server, "late", 4)
    page = open_page("/runs/late")
    mark = page.locator("#live")
    expect(mark).to_have_text(re.compile(r"^No data for \d+ s$"), timeout=90_000)
    silent = int(re.sub(r"\D", "", mark.inner_text()))
    said = page.locator(".run-top time[data-show=ago]").inner_text()
    seen = int(re.sub(r"\D", "", said)) * (60 if "min" in said else 1)
    assert silent >= 20 and abs(silent - seen) < 60
    expect(page.locator(".run-top .state")).to_have_text("running")


def test_a_comparison_has_one_conclusion(runs: str, open_page: Open) -> None:
    page = open_page("/compare?before=before&after=fixed")
    outcome = page.locator(".verdict .chip").first
    expect(outcome).to_have_text("Improved")
    expect(page.locator(".verdict")).not_to_contain_text("Fixed")
    # Colour marks a significant change: only a change with an interval has one.
    for tile in page.locator(".changes .tile[data-status]").all():
        assert re.search(r"\(|\bto\b", tile.inner_text())


def test_the_forecast_matches_the_memory_shown(runs: str, open_page: Open) -> None:
    page = open_page("/runs/before")
    drawn = chart(page, "trend")
    ends = lines_of(drawn, "rss")["generation end"]
    assert drawn["cones"]["rss"]["estimate"][0] == pytest.approx(ends[-1], rel=0.01)
    total = lines_of(drawn, "total")["generation end"]
    assert drawn["cone"]["estimate"][0] == pytest.approx(total[-1], rel=0.01)


def test_an_interval_is_not_shown_where_it_rounds_to_one_number(runs: str, open_page: Open) -> None:
    for run in ("ahead", "before", "ranks", "workers"):
        text = open_page(f"/runs/{run}{ALL}").locator("#run").inner_text()
        spans = re.findall(r"([\d.,]+ \w+) to ([\d.,]+ \w+)", text)
        assert not [span for span in spans if span[0] == span[1]]


def in_view(page: Page, selector: str, height: int) -> bool:
    box = page.locator(selector).first.bounding_box()
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= height


def test_the_first_screen_answers_all_questions_in_few_words(runs: str, open_page: Open) -> None:
    page = open_page("/runs/ranks", width=1280, height=800)
    draw_everything(page)
    page.evaluate("scrollTo(0, 0)")
    for answer in (
        "#verdict-sentence", ".verdict .figures", "#chart-trend", ".finding h3", ".finding .suspects",
        ".finding .advice", '[data-part="growth"] .bars', '[data-part="processes"] .bars',
    ):  # fmt: skip
        assert in_view(page, answer, 800), answer
    shown = """[...document.querySelectorAll('#run > :not([id^=tab]) *')]
        .filter((each) => each.getBoundingClientRect().top < 800 && each.checkVisibility())
        .flatMap((each) => [...each.childNodes].filter((node) => node.nodeType === 3))
        .map((node) => node.textContent).join(' ')"""
    assert 60 < len(str(page.evaluate(shown)).split()) < 350


def test_a_phone_shows_verdict_forecast_and_chart_first(runs: str, open_page: Open) -> None:
    page = open_page("/runs/workers", width=390, height=844)
    draw_everything(page)
    page.evaluate("scrollTo(0, 0)")
    for answer in ("#verdict-sentence", ".verdict .figures", "#chart-trend"):
        assert in_view(page, answer, 844), answer
    assert fits(page, 390)
    page.locator(".tab-choice select").select_option("Run info")
    expect(page).to_have_url(re.compile(r"tab=info"))
    expect(page.locator("#processes")).to_be_visible()
