"""A training loop beside each fault of a server, and the catching up after it; `tests/soak/test_faults.py` measures."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.fault_loop import train
from tests.client.faults import FaultServer

pytestmark = pytest.mark.flow


@pytest.mark.parametrize(
    "mode", ["absent", "black hole", "dripping", "endless body", "busy"]
)  # fmt: skip
def test_the_loop_goes_on_and_everything_arrives_once(
    tmp_path: Path, faulty: FaultServer, mode: str
) -> None:
    cost = train(tmp_path, faulty, mode, seconds=0.5, waiting=300)
    assert cost.failures > 0
    # Measured beside whatever else this machine does; the soak holds the promise of 5 ms.
    assert cost.longest_stall_seconds < 0.05
    # A call that waited for the network would have waited for the 0.3 s that a request has here.
    assert max(cost.outage["longest_wait"], cost.after["longest_wait"]) < 0.25
    assert cost.lost == {}
    assert sorted(faulty.sequences) == list(range(1, max(faulty.sequences) + 1))
    assert len(faulty.sequences) > 300
    assert faulty.ends[0]["state"] == "finished"
