"""Two processes that train one model are one run with two ranks, and the one that leaks is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import PROGRAMS, Ended

TORCHRUN = [
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    str(PROGRAMS / "with_torchrun.py"),
]
GENERATIONS = 24


@pytest.fixture(scope="module", params=["with_torchrun", "with_lightning_ddp"])
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained(run_program: Callable[..., Ended], program: str, variant: str) -> Ended:
    """No run is given: the ranks find out that they are one."""
    command: Any = TORCHRUN if program == "with_torchrun" else program
    ended = run_program(command, "", variant)
    assert ended.status == 0, ended.errors
    (run,) = {path.parent.name for path in (ended.folder / ".leakline").rglob("*.spool")}
    return Ended(ended.server, run, 0, ended.output, ended.errors, ended.folder)


def test_the_rank_that_leaks_is_named(run_program: Callable[..., Ended], program: str) -> None:
    ended = trained(run_program, program, "leak")
    told = ended.told()
    assert sorted(p["rank"] for p in told["processes"]) == [0, 1]
    assert {p["end_state"] for p in told["processes"]} == {"finished"}
    # One of the ranks talks.
    assert ended.errors.count("leakline: run ") == 1
    verdict = ended.verdict(GENERATIONS)
    assert verdict["status"] == "confirmed", verdict["summary"]
    found = [f for f in verdict["findings"] if f["status"] in ("suspected", "confirmed")]
    assert {f["process"] for f in found} == {"rank 1 main"}
    named = {suspect["name"] for suspect in found[0]["suspects"]}
    assert any("Prediction" in name or "Keeper.kept" in name for name in named), named


def test_ranks_that_do_not_leak_are_left_alone(
    run_program: Callable[..., Ended], program: str
) -> None:
    verdict = trained(run_program, program, "healthy").verdict(GENERATIONS)
    assert verdict["status"] not in ("suspected", "confirmed"), verdict["summary"]
