from __future__ import annotations

import json
from typing import Any


def test_an_unknown_project_has_no_runs(leakline: Any, server: str) -> None:
    said = leakline("runs", "--server", server, "--project", "nobody")
    assert (said.status, said.output) == (0, f"no runs on {server}\n")


def test_the_newest_comes_first_with_aligned_columns(leakline: Any, server: str) -> None:
    lines = leakline("runs", "--server", server, "--project", "app").output.splitlines()
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines, ("ID", "run2", "run1", "run0"), strict=True)
            }
        )
        == 1
    )
    assert "app/fixed" in lines[1]
    assert "14/25" in lines[1]
    assert lines[2].startswith(("suspected", "confirmed"))
    assert "+20.00 MiB" in lines[2]


def test_a_status_chooses(leakline: Any, server: str) -> None:
    listed = ("runs", "--server", server, "--project", "app")
    status = json.loads(leakline(*listed, "--json").output)["items"][1]["status"]
    said = leakline(*listed, "--status", status)
    assert "run1" in said.output
    assert "run2" not in said.output
