"""The sentence of a verdict on a run that died: how it died comes first, and never that too little was seen."""

from __future__ import annotations

from typing import Any

import pytest

from leakline.kills import UNWATCHED, death_of, ended_as, said_at_end

READING = "1.90 GiB of its limit of 2.00 GiB at the last reading"
KILL = f"memory: {READING}"
KILLED = f"Killed for memory after 4 generations ({READING})"
UNKNOWN = "before growth per generation could be measured"
MIB = 2**20


def verdict(status: str, summary: str, growth: float | None = None, **more: Any) -> dict[str, Any]:
    interval = None if growth is None else {"estimate": growth, "low": growth, "high": growth}
    return {
        "status": status, "summary": summary, "unit": "generation", "generations": 4,
        "growth_bytes_per_generation": interval, "findings": [], **more,
    }  # fmt: skip


LEARNING = verdict("learning", "Learning: 4 generations seen, too few to judge")
WATCH = verdict(
    "watch", "Memory grows by +8 MiB per generation, too short or too unsteady", 8 * MIB
)
LEAK = verdict("confirmed", "train keeps 1 Env per generation", 8 * MIB)
OK = verdict("ok", "No leak: memory changes by +1.00 KiB per generation", 1024.0)
NOTHING = verdict("learning", "Nothing to say yet: no generation has ended", generations=0)


@pytest.mark.parametrize(
    ("found", "state", "reason", "said"),
    [
        (LEARNING, "killed", "SIGKILL", f"Killed by SIGKILL after 4 generations, {UNKNOWN}"),
        (LEARNING, "failed", "ValueError", f"Failed (ValueError) after 4 generations, {UNKNOWN}"),
        (LEARNING, "interrupted", "KeyboardInterrupt", f"Interrupted by Ctrl-C after 4 generations, {UNKNOWN}"),
        (NOTHING, "failed", "exit status 7", "Failed (exit status 7) before the first generation ended"),
        (WATCH, "killed", KILL, f"{KILLED}; until then memory changed by +8.00 MiB per generation"),
        (LEAK, "killed", KILL, f"{KILLED}. train keeps 1 Env per generation"),
        (LEAK, "killed", "SIGTERM", LEAK["summary"]),
        (OK, "killed", KILL, f"{KILLED}. From one generation to the next memory changed by +1.00 KiB per generation: "
         "look for what fills it within a generation, or for another process"),
        (OK, "failed", "exit status 7", OK["summary"]),
        (LEARNING, "finished", "", LEARNING["summary"]),
        (LEARNING, "running", "", LEARNING["summary"]),
    ],
)  # fmt: skip
def test_how_a_run_died_comes_first(
    found: dict[str, Any], state: str, reason: str, said: str
) -> None:
    assert said_at_end(found, state, reason) == said


def test_what_ctrl_c_ends_was_interrupted_in_every_form() -> None:
    for state in ("interrupted", "killed", "terminated"):
        death = death_of(state, "KeyboardInterrupt")
        assert death is not None and death.how == "Interrupted by Ctrl-C"


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("running", "", "running"),
        ("finished", "", "finished"),
        ("finished", UNWATCHED, "watched no longer; the program was still running"),
        ("silent", "", "silent"),
        ("failed", "", "failed"),
        ("failed", "ValueError", "failed: ValueError"),
        ("killed", "", "killed"),
        ("killed", "memory: 9.7 GiB of 10 GiB", "killed for memory"),
        ("killed", "memory", "killed for memory"),
        ("killed", "SIGTERM", "killed by SIGTERM"),
        ("killed", "KeyboardInterrupt", "interrupted by Ctrl-C"),
        ("interrupted", "KeyboardInterrupt", "interrupted by Ctrl-C"),
    ],
)
def test_an_end_is_told_in_words(state: str, reason: str, text: str) -> None:
    assert ended_as(state, reason) == text
