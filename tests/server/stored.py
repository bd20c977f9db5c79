"""Steps of tests that look at what is stored: the engine of an application, and its snapshots sealed."""

from __future__ import annotations

from fastapi.testclient import TestClient
from sqlalchemy import update

from leakline_server.store import sealing
from leakline_server.store.engine import Engine, writing
from leakline_server.store.tables import batches

# When everything has been idle for long, in Unix seconds.
LATER = 4e9


def engine_of(api: TestClient) -> Engine:
    found: Engine = api.app.state.services.engine  # type: ignore[attr-defined]
    return found


def make_idle(engine: Engine) -> None:
    """As if all that waits had come long ago."""
    with writing(engine) as connection:
        connection.execute(update(batches).values(received_at=0.0))


def seal(engine: Engine) -> None:
    """All that waits and is enough for a segment."""
    make_idle(engine)
    while due := sealing.due(engine, LATER):
        for key in due:
            sealing.seal_one(engine, key, LATER)
