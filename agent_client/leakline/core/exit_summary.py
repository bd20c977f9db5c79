"""The verdict at the end of a run, as far as the time of an exit allows: of the server, or worked out here."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Final

from ..runtime.error_boundary import Guard
from ..runtime.threads import OurThread
from ..text_format import with_forecast, worded
from ..transport.http_delivery import Accepted, Delivery, one_line

ASK_AGAIN_SECONDS: Final = 0.01
LINE_LIMIT: Final = 500


def verdict_of_server(
    delivery: Delivery, run_id: str, generations: int, seconds: float
) -> str | None:
    """One sentence, of all processes of the run; None when the server has not seen so many generations in this time.

    It looks at a run as soon as that ends, so it is mostly there at the second question.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        delivery.timeout_seconds = left
        outcome = delivery.request("GET", f"/runs/{run_id}/verdict")
        if not isinstance(outcome, Accepted):
            break
        seen, summary = outcome.body.get("generations"), outcome.body.get("summary")
        if isinstance(seen, int) and seen >= generations and isinstance(summary, str):
            said = worded(str(outcome.body.get("status")), str(summary))
            return one_line(with_forecast(said, outcome.body.get("oom")), LINE_LIMIT)
        time.sleep(ASK_AGAIN_SECONDS)
    return None


def not_ready(project: str, name: str, url: str) -> str:
    """``; in a few seconds: leakline verdict mine/before, or http://...``"""
    command = f"leakline verdict {shlex.quote(f'{project}/{name}')}, or " if project else ""
    return f"; in a few seconds: {command}{url}"


def verdict_within(path: Path, seconds: float) -> str | None:
    """One sentence; None when it is not worked out in this time. What works on it goes on until the process ends."""
    told: list[str] = []

    def work_out() -> None:
        from ..report import closing_line

        with Guard("the closing verdict"):
            told.append(closing_line(path))

    thread = OurThread("goodbye", work_out)
    try:
        thread.start()
    except RuntimeError:
        # The interpreter is ending and gives no more threads.
        return None
    thread.join(max(0.0, seconds))
    return told[0] if told else None
