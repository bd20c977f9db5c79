"""A real Prometheus configured as in docs/other-tools.md scrapes a real server and answers every dashboard query."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from tests.flows.conftest import Server, eventually
from tests.json_batches import batch_to_wire

from leakline.snapshot import Batch, ProcessIdentity, Snapshot
from leakline.transport.http_delivery import request_json

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "other-tools.md").read_text()
DASHBOARD: Final = json.loads((ROOT / "static" / "grafana-dashboard.json").read_text())
# `make test-integrations` installs it into .peers, unless the machine has its own.
PROMETHEUS: Final = shutil.which("prometheus") or shutil.which(
    "prometheus", path=str(ROOT / ".peers/usr/bin")
)
MIB: Final = 2**20
STARTING: Final = 503
# Nothing is refused and no run has a total, so these metrics have no value.
EMPTY: Final = ("leakline_batches_refused_total", "leakline_run_generations_planned")


@pytest.fixture(scope="module")
def address(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Prometheus that has scraped a server with a leaking run."""
    if PROMETHEUS is None:
        pytest.skip("no prometheus on this machine, and none could be brought")
    _leaking_run(server)
    folder, port = tmp_path_factory.mktemp("prometheus"), _free_port()
    scrape, rules = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    scrape = scrape.replace("127.0.0.1:8765", server.address.removeprefix("http://"))
    # By default Prometheus evaluates rules once a minute, when the run is already silent.
    hurried = "global: {evaluation_interval: 1s}\n" + scrape.replace("15s", "1s")
    (folder / "prometheus.yml").write_text(hurried)
    (folder / "leakline-rules.yml").write_text(rules)
    process = subprocess.Popen(
        [
            PROMETHEUS, "--config.file=prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ],
        cwd=folder,
    )  # fmt: skip
    asked = f"http://127.0.0.1:{port}"
    try:
        # Several scrapes, because a rate needs two.
        eventually(lambda: _values(asked, "count_over_time(leakline_live_runs[1m]) >= 3"), 60.0)
        yield asked
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _leaking_run(server: Server) -> None:
    request_json(server.address, "POST", "/runs", {"id": "leaking", "name": "leaking"})
    snapshots = tuple(
        Snapshot(
            i, 1_760_000_000.0 + i, float(i), i, None, f"generation {i}: end", "generation_end",
            {"process.rss_bytes": (500 + 40 * i) * MIB, "cgroup.limit_bytes": 2_400 * MIB},
        )
        for i in range(1, 31)
    )  # fmt: skip
    batch = batch_to_wire(Batch(ProcessIdentity("leaking"), snapshots))
    request_json(server.address, "POST", "/runs/leaking/batches", batch)
    server.verdict("leaking", 30)


def _values(address: str, query: str) -> list[dict[str, Any]]:
    """Query Prometheus. Raises HTTPError if it does not understand the query."""
    try:
        path = f"{address}/api/v1/query?{urlencode({'query': query})}"
        with urllib.request.urlopen(path, timeout=20) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != STARTING:
            raise
        return []
    except OSError:
        # Prometheus is still starting.
        return []
    assert found["status"] == "success", found
    values: list[dict[str, Any]] = found["data"]["result"]
    return values


def _filled_in(query: str) -> str:
    return query.replace("$project", ".*").replace("$name", ".*")


def test_every_panel_has_data(address: str) -> None:
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 20
    for query in asked:
        found = _values(address, _filled_in(query))
        assert found or any(name in query for name in EMPTY), query


def test_the_rules_of_the_page_fire(address: str) -> None:
    def firing() -> set[str]:
        found = _values(address, 'ALERTS{alertstate="firing"}')
        return {alert["metric"]["alertname"] for alert in found}

    # The others need a forecast within half an hour, or a backlog of batches.
    assert "LeakConfirmed" in eventually(firing, 30.0)
    with urllib.request.urlopen(f"{address}/api/v1/rules", timeout=20) as answer:
        rules = json.load(answer)["data"]["groups"][0]["rules"]
    assert [rule["health"] for rule in rules] == ["ok", "ok", "ok"]
