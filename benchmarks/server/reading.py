"""Time to read one series of 10,000 to 1,000,000 points as 2,000, warm and after a restart, and ten runs overlaid.

Every answer is parsed: spikes of a single snapshot are planted, and the visible ones are counted. Warm ranges differ
slightly between requests, as with zooming; VictoriaMetrics is queried with and without its result cache, and the
faster one counts. The time is until the answer has arrived, on a kept connection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from statistics import median
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np

from .compacting import compacted
from .feeding import full_or_short, running, streamed
from .load import Failed, closed
from .machine import forget_pages
from .rows import Figure, Line, Part
from .samples import READ_NAME, SECONDS_APART, Samples, stream
from .subjects import Absent, InfluxDB, Leakline, Prometheus, Subject, VictoriaMetrics

LENGTHS: Final = (10_000, 100_000, full_or_short(1_000_000, 200_000))
COLUMNS: Final = dict(
    zip(LENGTHS, ("ten_thousand_ms", "hundred_thousand_ms", "million_ms"), strict=True)
)
POINTS: Final = 2_000
WARM: Final = 9
RESTARTS: Final = full_or_short(3, 2)
SPIKES: Final = 40
SPIKE_BYTES: Final = 2**36
AGAINST_WARM: Final = 0.15
# Without the result cache, which VictoriaMetrics keeps over a restart: afterwards its data must be read.
NO_CACHE: Final = ", nocache"
OVERLAID: Final = 10
OVERLAID_POINTS: Final = full_or_short(100_000, 20_000)
OVERLAY_MS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Range:
    """A range of one run in Unix seconds."""

    run: str
    start: float
    stop: float

    @property
    def step(self) -> float:
        return (self.stop - self.start) / POINTS


# Requests POINTS points and returns all values in which a spike could appear.
Ask = Callable[[HTTPConnection, Range], Sequence[float]]


def measure() -> list[Part]:
    lines = [_line(kind) for kind in (Leakline, VictoriaMetrics, Prometheus, InfluxDB)]
    ours, peer = lines[0].figures, lines[1]
    figures = [
        Figure(
            f"one series of {LENGTHS[-1]:,} points to {POINTS:,}, warm, of VictoriaMetrics", AGAINST_WARM,
            None if peer.missing else ours["million_ms"] / peer.figures["million_ms"],
            unit=" ×", missing=peer.missing, note=f"{ours['million_ms']:.1f} ms",
        ),
        Figure("spikes of a single snapshot that are kept", SPIKES, ours["spikes"], at_least=True),
        Figure(
            "the same cold after a restart, of VictoriaMetrics", 1.0,
            None if peer.missing else ours["cold_ms"] / peer.figures["cold_ms"],
            unit=" ×", missing=peer.missing, note=f"{ours['cold_ms']:.1f} ms",
        ),
    ]  # fmt: skip
    title = (
        f"one series to {POINTS:,} points over HTTP, median of {WARM}; cold: of {RESTARTS} restarts"
    )
    return [Part(title, lines, figures)]


def _line(kind: type[Subject]) -> Line:
    try:
        with running(kind) as server:
            return _measured(server)
    except Absent as error:
        return Line(kind.name, missing=str(error))


def _measured(server: Subject) -> Line:
    ranges = _filled(server)
    forms = FORMS[type(server)]
    # The whole range of the longest series in each available form; the fastest one counts.
    way = min(forms, key=lambda form: _warm(server, ranges[LENGTHS[-1]], forms[form]))
    figures = {COLUMNS[n]: _warm(server, found, forms[way]) for n, found in ranges.items()}
    connection = HTTPConnection(*server.address, timeout=300)
    values = np.asarray(forms[way](connection, ranges[LENGTHS[-1]]), dtype=float)
    connection.close()
    figures["spikes"] = len({int(v) for v in values.tolist() if v >= SPIKE_BYTES})
    figures["cold_ms"] = median(
        _cold(server, ranges[LENGTHS[-1]], forms.get(f"{way}{NO_CACHE}", forms[way]))
        for _ in range(RESTARTS)
    )
    return Line(server.name, figures, note=way)


def _filled(server: Subject) -> dict[int, Range]:
    """Fill the series one after the other in time, the longest last: some servers refuse older samples."""
    names = server.create([f"r{length}" for length in LENGTHS])
    started = time.time() - (sum(LENGTHS) + 3_600) * SECONDS_APART
    ranges = {}
    for length, run in zip(LENGTHS, names.values(), strict=True):
        pieces = _with_spikes(stream(length, length, started), length)
        closed(server.address, [streamed(server, run, pieces)])
        ranges[length] = Range(run, started, started + length * SECONDS_APART)
        started = ranges[length].stop
    if isinstance(server, Leakline):
        server.finish(list(names.values()))
        compacted([server])
    server.settle(full_or_short(60, 20), 3.0)
    return ranges


def _with_spikes(pieces: Iterator[Samples], length: int) -> Iterator[Samples]:
    """Add spikes of different heights at positions unrelated to any bucket boundaries."""
    places = np.random.default_rng(1).choice(length, SPIKES, replace=False)
    for piece in pieces:
        values = piece.columns[READ_NAME].copy()
        for number, place in enumerate(places.tolist()):
            if piece.first <= place < piece.first + piece.count:
                values[place - piece.first] = SPIKE_BYTES + number * 2**20
        yield Samples(
            piece.first, piece.times, piece.monotonic, {**piece.columns, READ_NAME: values}
        )


def _warm(server: Subject, whole: Range, ask: Ask) -> float:
    """Return the median in milliseconds of warm requests."""
    connection = HTTPConnection(*server.address, timeout=300)
    ask(connection, whole)
    spent = []
    for i in range(WARM):
        moved = i * 7 * SECONDS_APART
        began = time.perf_counter()
        ask(connection, Range(whole.run, whole.start + moved, whole.stop))
        spent.append((time.perf_counter() - began) * 1e3)
    connection.close()
    return median(spent)


def _cold(server: Subject, whole: Range, ask: Ask) -> float:
    """Return the milliseconds of the first request after a restart with an empty page cache."""
    server.stop()
    forget_pages(server.folder)
    server.start()
    connection = HTTPConnection(*server.address, timeout=300)
    # Connected before the clock starts, as an open page would be.
    connection.connect()
    began = time.perf_counter()
    ask(connection, whole)
    spent = (time.perf_counter() - began) * 1e3
    connection.close()
    return spent


def _get(
    connection: HTTPConnection, path: str, query: Mapping[str, object] | Sequence[tuple[str, str]]
) -> bytes:
    connection.request("GET", f"{path}?{urlencode(query)}")
    answer = connection.getresponse()
    raw = answer.read()
    if answer.status != 200:
        raise Failed(f"{path}: {raw[:400].decode(errors='replace')}")
    return raw


def _leakline(connection: HTTPConnection, asked: Range) -> Sequence[float]:
    path = f"/api/v1/runs/{asked.run}/series"
    raw = _get(
        connection, path,
        {"name": READ_NAME, "x": "time", "points": POINTS, "from": asked.start, "to": asked.stop},
    )  # fmt: skip
    # Parsed after the clock has stopped: a page parses in the browser, which costs the same for all of them.
    return _Later(raw, lambda found: found["items"][0]["max"])


class _Later(Sequence[float]):
    """Values of an answer, parsed on first use."""

    def __init__(self, raw: bytes, values: Callable[[Any], Sequence[Any]]) -> None:
        self._raw, self._values = raw, values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = self._values(json.loads(self._raw))
        return np.asarray([float(v) for v in found if v is not None], dtype=dtype)

    def __len__(self) -> int:
        return len(self.__array__())

    def __getitem__(self, at: Any) -> Any:
        return self.__array__()[at]


def _query_range(connection: HTTPConnection, query: str, asked: Range, **more: object) -> bytes:
    step = f"{asked.step:.3f}"
    given = {"query": query, "start": asked.start + asked.step, "end": asked.stop, "step": step}
    return _get(connection, "/api/v1/query_range", {**given, **more})


def _largest(found: Any) -> list[float]:
    return [float(value) for each in found["data"]["result"] for _, value in each["values"]]


def _series(asked: Range) -> str:
    return f'{READ_NAME.replace(".", "_")}{{run="{asked.run}"}}'


def _promql(*functions: str, **more: object) -> Ask:
    """Return a query per function, because there is no function for several values."""

    def ask(connection: HTTPConnection, asked: Range) -> Sequence[float]:
        window = f"{int(asked.step * 1e3)}ms"
        raw = b""
        for function in functions:
            raw = _query_range(connection, f"{function}({_series(asked)}[{window}])", asked, **more)
        return _Later(raw, _largest)

    return ask


def _influx(connection: HTTPConnection, asked: Range) -> Sequence[float]:
    query = (
        f'SELECT min("{READ_NAME}"), max("{READ_NAME}") FROM snapshot WHERE run=\'{asked.run}\''
        f" AND time >= {int(asked.start * 1e3)}ms AND time < {int(asked.stop * 1e3)}ms"
        f" GROUP BY time({int(asked.step * 1e3)}ms)"
    )
    raw = _get(connection, "/query", {"db": "bench", "q": query, "epoch": "ms"})
    return _Later(raw, lambda found: [v[2] for v in found["results"][0]["series"][0]["values"]])


# The forms in which a user of each server would ask, by name.
FORMS: Final[dict[type[Subject], dict[str, Ask]]] = {
    Leakline: {"first, last, min and max in one answer": _leakline},
    VictoriaMetrics: {
        "min_over_time, then max_over_time": _promql("min_over_time", "max_over_time"),
        f"min_over_time, then max_over_time{NO_CACHE}": _promql(
            "min_over_time", "max_over_time", nocache=1
        ),
        "rollup_candlestick": _promql("rollup_candlestick"),
        f"rollup_candlestick{NO_CACHE}": _promql("rollup_candlestick", nocache=1),
    },
    Prometheus: {"min_over_time, then max_over_time": _promql("min_over_time", "max_over_time")},
    InfluxDB: {"min and max in one answer": _influx},
}


def overlay() -> list[Part]:
    with running(Leakline) as server:
        runs = list(server.create([f"o{i}" for i in range(OVERLAID)]))
        started = time.time() - OVERLAID_POINTS * SECONDS_APART
        closed(
            server.address,
            [
                streamed(server, run, stream(i, OVERLAID_POINTS, started))
                for i, run in enumerate(runs)
            ],
        )
        server.finish(runs)
        compacted([server])
        server.settle(full_or_short(60, 20), 3.0)
        connection = HTTPConnection(*server.address, timeout=300)
        spent, raw = [], b""
        for i in range(WARM + 1):
            # Each request leaves out one more generation.
            query = [("run", run) for run in runs] + [
                ("name", READ_NAME), ("x", "generation"), ("points", str(POINTS)), ("from", str(i)),
            ]  # fmt: skip
            began = time.perf_counter()
            raw = _get(connection, "/api/v1/series", query)
            spent.append((time.perf_counter() - began) * 1e3)
        connection.close()
    warm = median(spent[1:])
    answered = len(json.loads(raw)["items"])
    name = f"{OVERLAID} runs of {OVERLAID_POINTS:,} points overlaid by generation"
    line = Line(name, {"ms": warm, "kib": len(raw) / 1024}, note=f"first request {spent[0]:.0f} ms")
    figure = Figure(name, OVERLAY_MS, warm, unit=" ms")
    if answered != OVERLAID:
        figure = Figure(name, OVERLAY_MS, missing=f"{answered} runs in the answer")
    return [Part(f"overlays over HTTP, {POINTS:,} points each, median of {WARM}", [line], [figure])]
