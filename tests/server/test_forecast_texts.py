"""The forecast of a run reads the same on the page, in the list, in the terminal, in reports and in alerts."""

from __future__ import annotations

from typing import Any

from leakline.analysis.results import Interval, OomForecast, Verdict, to_json
from leakline.report.document import verdict_lines
from leakline.report.terminal_text import Shown, frame
from leakline.text_format import with_forecast
from leakline_server.alerts.alert_payload import ExaminedRun
from leakline_server.alerts.run_alerts import oom_alert
from leakline_server.web.run_page.verdict_view import forecast_text, tiles

SAID = "OOM near generation 415 of 1,000 at this rate (380 to 460)"
OOM = OomForecast("high", 2**34, "system", Interval(415, 380, 460), None, 1_000, SAID)
VERDICT = Verdict("r1", "generation", 20, "confirmed", "it leaks", None, None, oom=OOM)
JSON: dict[str, Any] = to_json(VERDICT)


def test_the_tile_shows_the_sentence() -> None:
    tile = tiles(JSON, "generation")[-1]
    assert f"{tile.value} {tile.detail}".startswith(SAID)
    assert "limit 16.00 GiB (machine)" in tile.detail


def test_the_list_shows_the_sentence() -> None:
    assert forecast_text(JSON["oom"], "generation") == SAID


def test_the_terminal_shows_the_sentence() -> None:
    assert f"forecast: {SAID}, high risk" in list(verdict_lines(JSON))
    run = {
        "project": "p", "name": "n", "state": "running", "generations": 20, "total": 1_000, "unit": "generation",
        "rss_bytes": None, "peak_bytes": None, "sparkline": [],
    }  # fmt: skip
    shown = frame(Shown(run, JSON, {"lines": []}, ()), 120)
    assert f"forecast  {SAID}, high risk" in shown
    assert with_forecast("leak", JSON["oom"]) == f"leak; {SAID}"


def test_the_exit_line_has_no_forecast_without_risk_or_after_a_kill_for_memory() -> None:
    assert with_forecast("leak", JSON["oom"] | {"risk": "none"}) == "leak"
    killed = "confirmed: Killed for memory after 20 generations. It leaks"
    assert with_forecast(killed, JSON["oom"]) == killed


def test_an_alert_shows_the_sentence() -> None:
    alert = oom_alert(ExaminedRun("r1", "p", "n", VERDICT, 1_000.0), None)
    assert alert is not None
    assert alert.payload["summary"] == f"Risk high: {SAID}"
    assert alert.payload["forecast"]["text"] == SAID
    assert alert.payload["forecast"]["planned"] == 1_000
