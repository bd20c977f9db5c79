"""Every kind of exit with every kind of server: at most 0.2 s if it is reachable, and 2 s if it is not.

Each is the median of EXIT_TRIES (5) with Leakline minus the median without it.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

from tests.client.exits import ENDS, seconds_to_end
from tests.client.faults import FaultServer

TRIES = int(os.environ.get("EXIT_TRIES", "5"))
MODES = ("healthy", "absent", "black hole", "dripping", "endless body", "busy")
UP_SECONDS, DOWN_SECONDS = 0.2, 2.0


def test_an_exit_takes_no_longer_than_promised(
    tmp_path: Path, faulty: FaultServer, report: Callable[[object], None]
) -> None:
    rows, failed = [], []
    for kind, end in ENDS.items():
        alone = statistics.median(seconds_to_end(tmp_path, end, None)[0] for _ in range(TRIES))
        found: dict[str, float] = {}
        for mode in MODES:
            faulty.set(mode)
            took = [seconds_to_end(tmp_path, end, faulty.address)[0] for _ in range(TRIES)]
            found[mode] = statistics.median(took) - alone
            promised = UP_SECONDS if mode == "healthy" or end.state is None else DOWN_SECONDS
            if found[mode] > promised:
                failed.append(f"{kind} with {mode} server: {found[mode]:.2f} s")
        rows.append(f"{kind:16}" + "".join(f"{found[mode]:14.3f}" for mode in MODES))
    head = f"{'seconds added':16}" + "".join(f"{mode:>14}" for mode in MODES)
    report("\n".join([head, *rows]))
    assert failed == []
