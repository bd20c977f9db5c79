"""A real training with three collectors, one of which keeps what it collects: its series, chart line and name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import page_of, rows_of, text_of, train

pytestmark = [pytest.mark.flow, pytest.mark.long]
MIB = 2**20
GENERATIONS = 24
COLLECTORS = ("collector-0", "collector-1", "collector-2")

# What both programs do: start collectors, the second of which keeps what it collects, and let each of them work.
LOOP = """
import multiprocessing, sys
import leakline


def start(context, count, target):
    workers = []
    for number in range(count):
        there, order = context.Pipe(False)
        done, here = context.Pipe(False)
        process = context.Process(target=target, args=(there, here, number == 1), name=f"collector-{number}")
        process.start()
        workers.append((process, order, done))
    return workers


def train(run, workers):
    for generation in range(int(sys.argv[1])):
        with run.generation(generation):
            with run.phase("collect"):
                for _, order, done in workers:
                    order.send(True)
                    done.recv()
    run.finish()
    for process, order, _ in workers:
        order.send(False)
        process.join()
"""

TRAINING = f"""{LOOP}


def collect(order, done, keeps):
    kept = []
    while order.recv():
        episode = bytearray(b"1") * (6 << 20)
        if keeps:
            kept.append(episode)
        done.send(len(kept))


def main():
    # As a training has, which the children share. The client takes 0.8 MiB in its first half second, here of twelve
    # generations: memory of its threads, two compressors of 250 KiB. Of 20 MB that would be a leak.
    data = bytearray(b"1") * (200 << 20)
    workers = start(multiprocessing.get_context("fork"), 3, collect)
    run = leakline.init(project="collectors", name="collectors", quiet=True)
    train(run, workers)


main()
"""


def last_of(server: Any, name: str) -> list[float]:
    (item,) = server.get(f"/runs/collectors/series?name={name}&points=200")["items"]
    return [y for y in item["last"] if y is not None]


def test_each_collector_has_a_series_and_the_growing_one_is_named(
    server: Any, tmp_path: Path
) -> None:
    status = train(server, tmp_path, "collectors", TRAINING, GENERATIONS, LEAKLINE_MAX_OVERHEAD="1")
    assert status == 0

    # Each has a series in the API, and one of them grows.
    grown = {}
    for name in COLLECTORS:
        sizes = last_of(server, f"children.process.{name}.uss_bytes")
        grown[name] = (sizes[-1] - sizes[0]) / (len(sizes) - 1)
    assert grown["collector-1"] == pytest.approx(6 * MIB, rel=0.1)
    assert max(grown["collector-0"], grown["collector-2"]) < MIB
    together = last_of(server, "children.uss_bytes")
    assert (together[-1] - together[0]) / (len(together) - 1) == pytest.approx(sum(grown.values()))

    # The finding names only the growing one.
    verdict = server.verdict("collectors", GENERATIONS)
    finding, *others = (f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed"))
    assert finding["kind"] == "children"
    assert not others, json.dumps(others, indent=1)
    named = [s["name"] for s in finding["suspects"] if s["role"] == "process"]
    assert named == ["collector-1"]
    assert "(collector-1)" in verdict["summary"]

    # The page shows a line and a row for each, with the growing one first.
    page = page_of(server, "/runs/collectors")
    rows = rows_of(page, "children")
    first = next(row for row in rows if "collector" in row)
    assert "collector-1" in first
    assert all(any(name in row for row in rows) for name in COLLECTORS)
    assert (
        '"collector-1"' in re.findall(r'data-part="children.data".*?</script>', page, re.DOTALL)[0]
    )


# Two collectors, one of which keeps its episodes. The scans are not spread over minutes, because the run takes seconds.
COLLECTORS_SCANNED = f"""{LOOP}
from leakline.sampling import worker_requests

worker_requests.GAP_SECONDS = worker_requests.GAP_SCANS = 0.0


class Episode:
    def __init__(self):
        self.frames = bytearray(b"1") * (6 << 20)


class Collector:
    def __init__(self, keeps):
        self.keeps, self.history = keeps, []

    def collect(self):
        self.history.append(Episode())
        if not self.keeps:
            del self.history[:-1]


def serve(order, done, keeps):
    collector = Collector(keeps)
    while order.recv():
        collector.collect()
        done.send(len(collector.history))
    raise SystemExit(3)


def main():
    data = bytearray(b"1") * (200 << 20)
    run = leakline.init(project="scanned", name=sys.argv[2], quiet=True, scan_workers=True)
    workers = start(multiprocessing.get_context(sys.argv[2]), 2, serve)
    train(run, workers)
    sys.exit(workers[0][0].exitcode)


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_finding_names_what_a_collector_keeps(server: Any, tmp_path: Path, method: str) -> None:
    status = train(
        server, tmp_path, method, COLLECTORS_SCANNED, GENERATIONS, method, LEAKLINE_MAX_OVERHEAD="1"
    )
    # The collectors end as they would without a run, and no request is left.
    assert status == 3
    assert not list((tmp_path / ".leakline").rglob("*.worker"))

    verdict = server.verdict(method, GENERATIONS)
    finding, *others = (f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed"))
    assert not others, json.dumps(others, indent=1)
    assert [(s["name"], s["role"]) for s in finding["suspects"]] == [
        ("collector-1", "process"), ("__main__.Episode", "type"),
        ("__main__.Collector.history", "holder"), ("bytearray", "type"),
    ]  # fmt: skip
    said = "(collector-1), namely Episode in collector-1, held by __main__.Collector.history"
    assert said in verdict["summary"]
    assert finding["advice"] == [
        "__main__.Collector.history in the child process keeps Episode: bound or clear it."
    ]
    assert said in text_of(page_of(server, f"/runs/{method}"))
