"""The leak that is told in these tests, and the run it is in."""

from __future__ import annotations

from leakline.analysis.results import Finding, Interval, Suspect, Verdict
from leakline_server.alerts.alert_payload import ExaminedRun

GIB = 2.0**30
FINDING = Finding(
    fingerprint="f1", status="confirmed", kind="objects", phase="evaluate_population", phase_share=0.97,
    suspects=(Suspect("trading.TradingEnvironment", "type", 16.0, 7.1 * GIB),),
    growth_bytes_per_generation=Interval(7.1 * GIB, 6.9 * GIB, 7.3 * GIB),
    started_at_generation=Interval(1, 1, 2), confidence=0.99,
)  # fmt: skip
VERDICT = Verdict("r1", "generation", 25, "confirmed", "…", None, None)
RUN = ExaminedRun("r1", "erl-trading", "before-fix", VERDICT, 1_760_000_000.0)
