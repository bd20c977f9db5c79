"""What the writer must know of a run before it takes a batch: a few questions, however many processes it has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from starlette.testclient import TestClient
from tests.server.stored import engine_of

from leakline_server.store.known import load_run


def questions_for(api: TestClient, run_id: str) -> int:
    asked: list[str] = []
    engine = engine_of(api)

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    with engine.connect() as connection:
        # Of this connection alone: the workers of the server ask theirs meanwhile.
        event.listen(connection, "before_cursor_execute", note)
        state = load_run(connection, run_id)
    assert state is not None
    for rank in range(len(state.processes)):
        process = state.processes[f"{run_id}-{rank}"]
        # Sealed or waiting, with the gap between them.
        assert [*process.known] == [(0, 2), (5, 7)]
    return len(asked)


def test_a_run_of_many_processes_is_known_with_as_many_questions_as_one_of_one(
    api: TestClient, make_run: Any
) -> None:
    for run_id, ranks in (("one", 1), ("many", 12)):
        for rank in range(ranks):
            run = make_run(id=run_id, instance=f"{run_id}-{rank}", rank=rank)
            run.create(api)
            run.send(api, 0, 3)
            run.send(api, 5, 3)
    assert questions_for(api, "many") == questions_for(api, "one")
