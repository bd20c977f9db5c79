"""The servers that receive the posts: given addresses, or servers started here on one database."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import sqlalchemy
from benchmarks.server.load import Address
from benchmarks.server.machine import cpu_seconds
from benchmarks.server.subjects import Leakline, started_postgres


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals of all servers. CPU in seconds so far; unknown values are 0."""

    cpu: float
    analysis: float
    database_cpu: float
    memory_mib: float
    disk: float
    sealed: float


class Servers:
    """The servers that processes post to; readings come from each server's /metrics."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.addresses = list(addresses)

    def read(self) -> Reading:
        texts = [_metrics(address) for address in self.addresses]

        def total(name: str) -> float:
            return sum(_metric(text, name) for text in texts)

        return Reading(
            total("process_cpu_seconds_total")
            + total("leakline_analysis_process_cpu_seconds_total"),
            total("leakline_examine_cpu_seconds_total"),
            self._database_cpu(),
            (
                total("process_resident_memory_bytes")
                + total("leakline_analysis_process_resident_memory_bytes")
            )
            / 2**20,
            self._disk(),
            total("leakline_snapshots_sealed_total"),
        )

    def _database_cpu(self) -> float:
        return 0.0

    def _disk(self) -> float:
        return 0.0


class OnSqlite(Servers):
    def __init__(self, addresses: Sequence[Address], folder: Path) -> None:
        super().__init__(addresses)
        self._folder = folder

    def _disk(self) -> float:
        """Return the size without the write-ahead log, which does not grow with the stored data."""
        return (self._folder / "leakline.db").stat().st_size


class OnPostgres(Servers):
    def __init__(self, addresses: Sequence[Address], folder: Path, url: str) -> None:
        super().__init__(addresses)
        self._postmaster = int((folder / "postmaster.pid").read_text().split()[0])
        self._engine = sqlalchemy.create_engine(url)

    def _database_cpu(self) -> float:
        return cpu_seconds([self._postmaster])

    def _disk(self) -> float:
        """Return the size without the write-ahead log, which a setting of Postgres bounds."""
        with self._engine.connect() as connection:
            asked = sqlalchemy.text("SELECT pg_database_size(current_database())")
            return float(connection.execute(asked).scalar_one())


def given(urls: Sequence[str]) -> Servers:
    addresses = []
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise SystemExit(f"benchmarks.scale: --server {url}: give an http:// address")
        addresses.append((parts.hostname, parts.port or 80))
    return Servers(addresses)


@contextmanager
def started(database: str, servers: int) -> Iterator[Servers]:
    """Start new servers on a new database; remove them afterwards."""
    with (
        TemporaryDirectory(prefix="leakline-scale-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        if database == "sqlite":
            server = _OnSqlite(folder / "server")
            stack.callback(server.stop)
            server.start()
            yield OnSqlite([server.address], folder / "server")
            return
        postgres = started_postgres(folder / "pg", pinned=False)
        stack.callback(postgres.cleanup)
        url = str(postgres.get_uri()).replace("postgresql://", "postgresql+psycopg://")
        several = [_OnUrl(folder / f"server-{i}", url) for i in range(servers)]
        for each in several:
            stack.callback(each.stop)
            each.start()
        yield OnPostgres([each.address for each in several], folder / "pg", url)


class _OnSqlite(Leakline):
    pinned = False


class _OnUrl(Leakline):
    pinned = False

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self._url = url

    def environment(self) -> dict[str, str]:
        return {"LEAKLINE_DATABASE_URL": self._url}


def settled(servers: Servers, longest_seconds: float = 120.0) -> Reading:
    """Wait until nothing but the analysis uses CPU, and return the readings."""
    until, before = time.monotonic() + longest_seconds, servers.read()
    while True:
        time.sleep(1.0)
        now = servers.read()
        spent = now.cpu - now.analysis + now.database_cpu
        spent -= before.cpu - before.analysis + before.database_cpu
        if spent < 0.05 * len(servers.addresses) or time.monotonic() > until:
            return now
        before = now


def _metrics(address: Address) -> str:
    connection = HTTPConnection(*address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{name} ([\d.e+-]+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0
