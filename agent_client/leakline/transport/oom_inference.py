"""Infers whether a process that could not report its end was killed for memory.

The kernel kills without notice, so the only evidence is the process's last readings and the kernel's own count of
kills. A process counts as killed for memory if one of these conditions holds:

1. The kernel has counted a kill in the process's memory group since its last reading.
2. The group had used nearly all of its limit at the last reading.
3. The machine had hardly any memory left at the last reading.

Without such evidence, the state of the run is "silent". This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ..snapshot import Number
from ..text_format import KILLED_FOR_MEMORY, format_bytes, seen_of

# A kill is assumed if at least this share of the limit was in use at the last reading: memory may have risen
# afterwards.
NEARLY_ALL: Final = 0.9
# A kill is assumed if at most this share of the machine's memory was left: the kernel kills while it still has some
# pages in reserve.
HARDLY_ANY: Final = 0.03
MEMORY: Final = "memory"
# Reason recorded when an outside observer stops while the program is still running.
UNWATCHED: Final = "watched no longer; the program was still running"
# Reasons recorded when a user ends a run with Ctrl-C.
INTERRUPTED: Final = ("KeyboardInterrupt", "SIGINT")
# The series that serve as evidence.
EVIDENCE: Final = (
    "cgroup.used_bytes", "cgroup.active_file_bytes", "cgroup.limit_bytes", "cgroup.kills",
    "system.available_bytes", "system.total_bytes",
)  # fmt: skip
# Maximum age of readings: older ones do not show how much memory was in use at the end.
FRESH_SECONDS: Final = 60.0


class Death(NamedTuple):
    """An abnormal end.

    ``how`` is, for example, ``Killed for memory``, and ``detail`` is ``1.90 GiB of the 2.00 GiB limit was in use ...``.
    """

    how: str
    detail: str = ""
    for_memory: bool = False


def death_of(state: str, reason: str) -> Death | None:
    """Return how a run or a process ended abnormally, or None for any other state."""
    if state == "failed":
        return Death(f"Failed ({reason})" if reason else "Failed")
    if state == "interrupted" or (state in ("killed", "terminated") and reason in INTERRUPTED):
        return Death("Interrupted by Ctrl-C")
    if state not in ("killed", "terminated"):
        return None
    kind, _, detail = reason.partition(":")
    if kind == MEMORY:
        return Death(KILLED_FOR_MEMORY, detail.strip(), True)
    return Death(f"Killed by {reason}" if reason else "Killed")


def ended_as(state: str, reason: str) -> str:
    """Describe the end of a run or a process, in lower case.

    The result is the state itself while the run or process is running, or if nothing more is known.
    """
    if reason == UNWATCHED:
        return reason
    if state == "failed" and reason:
        return f"failed: {reason}"
    death = death_of(state, reason)
    return state if death is None else f"{death.how[:1].lower()}{death.how[1:]}"


def said_at_end(verdict: Mapping[str, Any], state: str, reason: str) -> str:
    """Return the summary of a verdict in the API's format. After an abnormal end, the summary begins with that end."""
    death = death_of(state, reason)
    if death is None:
        return str(verdict["summary"])
    from ..analysis.findings.verdict_summary import ended_summary

    growth, unit = verdict["growth_bytes_per_generation"], verdict["unit"]
    generations = verdict["generations"]
    seen = seen_of(generations, verdict.get("generations_passed"), unit) if generations else ""
    return ended_summary(
        verdict["summary"], verdict["status"], death.how, death.detail,
        for_memory=death.for_memory, seen=seen, unit=unit,
        growth=None if growth is None else growth["estimate"],
        is_named=any(f["status"] == "watch" and f["suspects"] for f in verdict["findings"]),
    )  # fmt: skip


def last_readings(moments: Iterable[tuple[float, Mapping[str, Number]]]) -> dict[str, Number]:
    """Return the newest value of each evidence series from ``moments``, which are (seconds, samples) in order."""
    rows = list(moments)
    found: dict[str, Number] = {}
    for at, samples in rows:
        if at >= rows[-1][0] - FRESH_SECONDS:
            found |= {name: samples[name] for name in EVIDENCE if name in samples}
    return found


def killed_for_memory(last: Mapping[str, Number], kills_since: int = 0) -> str | None:
    """Return the reason as it is reported ("memory: .."), or None without evidence of a kill for memory.

    ``last`` contains the process's `last_readings`. ``kills_since`` is the number of kills that the kernel has counted
    in the process's memory group since these readings.
    """
    used, limit = _unreclaimable(last), last.get("cgroup.limit_bytes")
    if kills_since > 0:
        usage = (
            f", which used {format_bytes(used)} of its {format_bytes(limit)} limit at the last reading"
            if used is not None and limit
            else ""
        )
        return f"{MEMORY}: the kernel killed a process in the run's memory group{usage}"
    if used is not None and limit and used >= NEARLY_ALL * limit:
        return f"{MEMORY}: {format_bytes(used)} of the {format_bytes(limit)} limit was in use at the last reading"
    left, total = last.get("system.available_bytes"), last.get("system.total_bytes")
    if left is not None and total and left <= HARDLY_ANY * total:
        return f"{MEMORY}: {format_bytes(left)} of {format_bytes(total)} was left on the machine at the last reading"
    return None


def _unreclaimable(samples: Mapping[str, Number]) -> Number | None:
    """Return the bytes used by the memory group, without active file pages.

    The kernel drops these pages before it kills a process.
    """
    used = samples.get("cgroup.used_bytes")
    return None if used is None else max(0, used - samples.get("cgroup.active_file_bytes", 0))
