from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import MIB, STARTED, by_the_minute, by_the_second, post_run

from leakline.snapshot import RunHeader


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


def test_growth_says_per_what(leakline: Any, server: str) -> None:
    """A run by the second stands next to one by the minute and one of generations."""
    for unit, counted in (("second", by_the_second), ("minute", by_the_minute), ("epoch", tuple)):
        post_run(
            server,
            RunHeader(f"per-{unit}", "per-what", unit, unit, None, STARTED),
            20 * MIB,
            counted,
        )
    head, *lines = leakline("runs", "--server", server, "--project", "per-what").output.splitlines()
    for line in lines:
        unit = line.split("per-what/")[1].split()[0]
        assert f"+20.00 MiB per {unit}  " in line
        assert line.index("+20.00") == head.index("GROWTH")
