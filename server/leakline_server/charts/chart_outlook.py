"""What stands behind the lines of a chart and beyond them: a start, a plan, a forecast. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from leakline.analysis.assertions.declared_limits import KEPT_BY_GENERATION
from leakline.analysis.generation_axis import UNITS_OF_TIME
from leakline.analysis.results import Books, OomForecast, to_json

from .chart_parts import PRIVATE, Axis, Band, Cone, Level, Points

MAX_BANDS: Final = 40
# How much further than the run the forecast is drawn, as a share of what was seen; or to the limit, where that is a
# risk or no further away than what was seen is long.
HORIZON: Final = 0.25
# A budget of several times the highest bar would press all bars flat.
FAR: Final = 3.0


def one_unit(verdict: Mapping[str, Any] | None, axis: Axis) -> float | None:
    """How long what the verdict counts by is on the axis; None where the two do not fit."""
    seconds = UNITS_OF_TIME.get((verdict or {}).get("unit", ""))
    if axis.unit == "generation":
        return 1.0 if seconds is None else None
    return None if seconds is None else seconds / axis.seconds


def start_bands(verdict: Mapping[str, Any] | None, axis: Axis) -> tuple[Band, ...]:
    """The interval in which the largest leak began, as a band half a generation wider than its ends."""
    one = one_unit(verdict, axis)
    if one is None:
        return ()
    for finding in (verdict or {}).get("findings", ()):
        start = finding["started_at_generation"]
        if finding["status"] in ("watch", "suspected", "confirmed", "recovered") and start:
            label = "growth starts" if finding["status"] == "watch" else "leak starts"
            tone = "watch" if finding["status"] == "watch" else "confirmed"
            return (Band((start["low"] - 0.5) * one, (start["high"] + 0.5) * one, label, tone),)
    return ()


def plan_bands(
    verdict: Mapping[str, Any] | None, axis: Axis, private: Sequence[Points], rss: Sequence[Points]
) -> tuple[Band, ...]:
    """Planned bands of memory, behind the lines they speak of; one without an upper bound or an end has no shape
    of its own and goes to the end of the lines.
    """
    shown = {PRIVATE[0]: ("private", private), "process.rss_bytes": ("rss", rss)}
    found: dict[tuple[float, ...], Band] = {}
    for check in (verdict or {}).get("assertions") or ():
        group, lines = shown.get(check["metric"], (None, ()))
        end = max((points.x[-1] for points in lines if points.x), default=None)
        if (
            check["origin"] != "band"
            or axis.unit != "generation"
            or end is None
            or check["high"] is None
        ):
            continue
        last = max(end, check["first"]) if check["last"] is None else check["last"]
        tone = "watch" if check["state"] == "broken" else "ok"
        place = (check["first"] - 0.5, last + 0.5, check["low"] or 0, check["high"])
        found[place] = Band(
            place[0], place[1], "plan", tone, place[2], place[3],
            group if private and rss else None,
        )  # fmt: skip
    return tuple(found.values())[:MAX_BANDS]


def forecast(
    verdict: Mapping[str, Any] | None, last: tuple[float, float] | None, axis: Axis, first_x: float
) -> tuple[Cone | None, tuple[Level, ...]]:
    """The growth carried on for a while, and the limit where it is near enough to be seen beside the run."""
    growth = (verdict or {}).get("growth_bytes_per_generation")
    one = one_unit(verdict, axis)
    if verdict is None or last is None or one is None:
        return None, ()
    # The end of a device's memory is no line among the memory of the process.
    oom = verdict["oom"] if verdict["oom"]["limit_source"] != "device" else to_json(OomForecast())
    limit = oom["limit_bytes"]
    label = f"limit ({limit_word(oom['limit_source'])})"
    leaking = verdict["status"] in ("watch", "suspected", "confirmed")
    if not growth or not leaking or growth["estimate"] <= 0:
        near = limit is not None and last[1] >= 0.6 * limit
        return None, ((Level(limit, label),) if near and limit else ())
    seen = last[0] - first_x
    end = last[0] + max(2.0 * one, HORIZON * seen)
    full = oom["generation"]
    is_near = full and full["estimate"] * one - last[0] <= max(2.0 * one, seen)
    if full and (is_near or oom["risk"] != "none"):
        end = max(end, full["estimate"] * one + 0.05 * seen)
    per_x = {side: growth[side] / one for side in ("low", "estimate", "high")}
    cone = _cone(last, per_x, end, limit or 0)
    near = limit is not None and cone.high[-1] >= 0.6 * limit
    return cone, ((Level(limit, label),) if near and limit else ())


def _cone(last: tuple[float, float], growth: Mapping[str, float], end: float, limit: float) -> Cone:
    """Straight, but for what lies far above the limit and the estimate: that would set the height of the chart."""
    x0, y0 = last
    low, middle, high = (max(growth[side], 0) for side in ("low", "estimate", "high"))
    highest = 1.25 * max(limit, y0 + middle * (end - x0))
    capped = x0 + (highest - y0) / high if high > 0 else end
    x = (x0, capped, end) if x0 < capped < end else (x0, end)
    return Cone(
        "forecast", x, tuple(y0 + low * (at - x0) for at in x), tuple(y0 + middle * (at - x0) for at in x),
        tuple(min(y0 + high * (at - x0), highest) for at in x),
    )  # fmt: skip


def limit_word(source: str | None) -> str:
    return {
        "cgroup": "container",
        "system": "machine",
        "user": "set by you",
        "device": "device",
    }.get(source or "", "unknown")


def budget_levels(verdict: Mapping[str, Any] | None, books: Books) -> tuple[Level, ...]:
    """The bounds of a budget of every generation, beside the bars that they speak of."""
    near = FAR * max((abs(each) / books.span(i) for i, each in enumerate(books.total)), default=0)
    told = [
        check
        for check in (verdict or {}).get("assertions") or ()
        if check["origin"] == "budget" and check["metric"] == KEPT_BY_GENERATION
    ]
    bounds = {
        (check[name], label, tone)
        for check in told
        for name, label, tone in (("high", "budget", "watch"), ("leak", "a leak from here on", "confirmed"))
        if check[name] is not None and check[name] <= near
    }  # fmt: skip
    return tuple(Level(*bound) for bound in sorted(bounds))
