"""A program ends as soon as it would without us: 0.2 s later beside a server that is up, 2 s beside one that is not.

The machine that runs these tests is shared, so they allow more; `tests/soak/test_exits.py` does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.client.exits import ENDS, End, added_seconds
from tests.client.faults import FaultServer

pytestmark = [pytest.mark.flow, pytest.mark.alone]

UP_SECONDS = 0.6
DOWN_SECONDS = 2.6


@pytest.mark.parametrize("kind", [kind for kind in ENDS if kind != "finish"])
def test_beside_a_server_that_is_up(tmp_path: Path, server: Any, kind: str) -> None:
    end = ENDS[kind]
    assert added_seconds(tmp_path, end, server.address) < UP_SECONDS
    assert [told["state"] for told in server.ends] == ([] if end.state is None else [end.state])
    if end.state is not None:
        assert server.sequences == sorted(set(server.sequences))
        assert len(server.sequences) >= 42


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("normal end", "absent"), ("normal end", "dripping"), ("SIGTERM", "black hole"),
        ("exception", "endless body"), ("os._exit", "black hole"),
    ],
)  # fmt: skip
def test_beside_a_server_that_is_not(
    tmp_path: Path, faulty: FaultServer, kind: str, mode: str
) -> None:
    faulty.set(mode)
    allowed = UP_SECONDS if kind == "os._exit" else DOWN_SECONDS
    assert added_seconds(tmp_path, ENDS[kind], faulty.address) < allowed


def test_the_closing_verdict_of_a_long_run_is_not_waited_for(tmp_path: Path, server: Any) -> None:
    """It is on the server as well."""
    many = "for g in range(20, 400):\n    with run.generation(g), run.phase('train'): pass"
    long = End("", 0, before=many)
    assert added_seconds(tmp_path, long, server.address, quiet=False) < UP_SECONDS
    assert server.ends[0]["state"] == "finished"
