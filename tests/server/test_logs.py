"""What the server logs, with its request and optionally as JSON; and that no secret is logged or stored."""

from __future__ import annotations

import io
import json
import logging
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Server
from tests.server.stored import serving

from leakline_server import logs
from leakline_server.store.engine import open_engine

log = logging.getLogger("leakline")
SECRETS = (
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "leakline_ingest_S3cr3t-S3cr3t_S3cr3tS3cr3tS3cr3tS3cr3tS3cr3t",
    "Bearer abc.def-123", "Basic dXNlcjpwYXNz", "postgresql+psycopg://leakline:hunter2@postgres:5432/leakline",
)  # fmt: skip


@pytest.fixture
def log_output() -> io.StringIO:
    """Return the stream for the log that `configure` sets up."""
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("form", logs.FORMATS)
@pytest.mark.parametrize("secret", SECRETS, ids=lambda s: s[:8])
def test_no_secret_is_in_a_line_or_traceback(
    form: logs.Format, secret: str, log_output: io.StringIO
) -> None:
    logs.configure(form, "debug", log_output)
    log.warning("a request with %s came", secret)
    try:
        raise RuntimeError(f"cannot use {secret} here")
    except RuntimeError:
        log.exception("it failed")
    written = log_output.getvalue()
    for word in ("MfKQ9r8", "S3cr3t", "abc.def", "dXNlcj", "hunter2"):
        assert word not in written
    assert "RuntimeError" in written
    assert "a request with" in written and "came" in written


@pytest.mark.parametrize("form", logs.FORMATS)
def test_text_of_others_cannot_begin_a_log_line(form: logs.Format, log_output: io.StringIO) -> None:
    logs.configure(form, "info", log_output)
    log.warning("run %s is gone", 'x\n{"level": "error", "message": "hacked"}\r\x1b[2J\u2028y')
    written = log_output.getvalue()
    assert len(written.splitlines()) == 1
    assert "\x1b" not in written and "\\u001b" not in written


def test_a_generated_secret_is_shown_if_the_line_allows_it(log_output: io.StringIO) -> None:
    logs.configure("json", "warning", log_output)
    log.warning("made now: %s", SECRETS[0], extra={"shows_secret": True})
    assert lines(log_output)[0]["message"] == f"made now: {SECRETS[0]}"


def test_a_json_line_has_time_level_message_and_logger(log_output: io.StringIO) -> None:
    logs.configure("json", "info", log_output)
    log.debug("not this")
    log.info("%d runs, ünï", 3)
    logging.getLogger("somebody.else").warning("and others")
    mine, other = lines(log_output)
    assert datetime.fromisoformat(mine["time"]).tzinfo is not None
    assert (mine["level"], mine["message"], mine["logger"]) == ("info", "3 runs, ünï", "leakline")
    assert (mine["process"], mine["thread"]) == (os.getpid(), "MainThread")
    assert "request" not in mine
    assert (other["logger"], other["level"]) == ("somebody.else", "warning")


def test_a_request_has_the_id_of_the_proxy_or_ours(
    log_output: io.StringIO, sqlite_url: str
) -> None:
    logs.configure("json", "info", log_output)
    of_proxy = "4bf92f3577b34da6a3ce929d0e0e4736"
    all_given = (of_proxy, "short", "x" * 65, '"} evil {"', "")
    with serving(sqlite_url) as api:
        for given in all_given:
            answer = api.get("/api/v1/runs?q=secret-word", headers={"x-request-id": given})
            assert answer.status_code == 200
    logged = [line for line in lines(log_output) if "/api/v1/runs" in line["message"]]
    for given, line in zip(all_given, logged, strict=True):
        assert line["message"].startswith("GET /api/v1/runs 200 in ")
        assert (line["request"] == given) == (given == of_proxy)
        assert len(line["request"]) >= 8
    assert "secret-word" not in log_output.getvalue()


def test_a_bug_is_answered_with_the_id_of_its_log_line(
    log_output: io.StringIO, sqlite_url: str, patch: Any, make_run: Any
) -> None:
    logs.configure("json", "info", log_output)
    with serving(sqlite_url, raises=False) as api:
        make_run().create(api)

        def broken(*_: Any) -> None:
            raise ZeroDivisionError

        # A bug in a page, and one in a request that bypasses the framework.
        patch("web.ingest.api.decode.check", broken)
        patch("web.runs.api.runs.get_run", broken)
        for answer in (
            api.get("/api/v1/runs/r1"),
            api.post("/api/v1/runs/r1/batches", json=make_run().wire(0, 1)),
        ):
            assert answer.status_code == 500
            named = answer.json()["error"]["details"]["request"]
            assert named in [line.get("request") for line in lines(log_output)]


def test_errors_of_the_database_show_no_values(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(Exception, match="nowhere") as caught, engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (?)", ("a-secret-value",))
    assert "a-secret-value" not in str(caught.value)
    engine.dispose()


@pytest.mark.flow
def test_a_server_writes_its_log_as_json(shared_server: Server, eventually: Any) -> None:
    def logged() -> list[str]:
        written = (shared_server.folder / "log").read_text().split("\n")[:-1]
        return [json.loads(line)["message"] for line in written]

    assert shared_server.request("GET", "/healthz")[0] == 200
    # The line is written after the response.
    eventually(lambda: any(each.startswith("GET /healthz 200") for each in logged()))
    assert any("did you mean LEAKLINE_KEEP_DAYS" in each for each in logged())
