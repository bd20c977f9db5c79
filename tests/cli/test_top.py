"""`leakline top` against a real server, in a real terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from typing import Any

from leakline.report.terminal_text import BARS, Shown, columns, cut, frame, sparkline


def test_json_shows_one_moment(ask: Any) -> None:
    assert ask("top", "run1", "--json").status == 2
    printed = json.loads(ask("top", "run1", "--json", "--once").output)
    assert printed["run"]["id"] == printed["verdict"]["run"] == "run1"
    assert printed["types"][0]["name"] == "app.Environment"
    assert printed["phases"]["lines"]


def test_one_frame_shows_the_essentials(ask: Any) -> None:
    said = ask("top", "app/leaking", "--once")
    assert said.status == 0
    lines = said.output.splitlines()
    assert lines[0] == "app/leaking  finished  14 of 25 generations"
    assert "evaluate keeps 16 Environment per generation" in " ".join(lines[1:4])
    assert any(line.startswith("memory  680.00 MiB, peak ") for line in lines)
    (trend,) = [line.split()[1] for line in lines if line.startswith("trend")]
    assert (trend[0], trend[-1]) == (BARS[0], BARS[-1])
    assert "growth  +20.00 MiB per generation" in lines
    words = [line.split() for line in lines]
    assert ["evaluate", "+20.00", "MiB", "+280.00", "MiB"] in words
    assert ["app.Environment", "240", "+16"] in words
    assert "\x1b" not in said.output


def test_in_a_pipe_a_run_that_has_ended_is_one_line(ask: Any) -> None:
    (line,) = ask("top", "app/leaking").output.splitlines()
    assert line.startswith("finished  14 of 25 generations  memory  680.00 MiB")
    assert "suspected: evaluate keeps 16 Environment" in line


def _in_a_terminal(server: str, run: str) -> tuple[int, int]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="100", LINES="40")
        program = [sys.executable, "-m", "leakline", "top", run]
        os.execv(sys.executable, [*program, "--server", server, "--every", "0.2"])
    return pid, terminal


def _read(terminal: int, until: str = "", seconds: float = 20.0) -> str:
    """Read the terminal until ``until`` appears or the output ends."""
    seen, deadline = "", time.monotonic() + seconds
    while not (until and until in seen):
        assert time.monotonic() < deadline, seen
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            part = os.read(terminal, 65536).decode(errors="replace")
        except OSError:
            break
        if not part:
            break
        seen += part
    return seen


def test_in_a_terminal_the_last_frame_stays(server: str) -> None:
    pid, terminal = _in_a_terminal(server, "app/leaking")
    seen = _read(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    screen, _, after = seen.rpartition("\x1b[?1049l")
    assert screen.startswith("\x1b[?1049h")
    assert "keeps 16 Environment" in after.replace("\r\n", " ").replace("  ", " ")


LIVE = """
import leakline, time
run = leakline.init(name='live', project='top', quiet=True)
for number in range(100_000):
    run.generation(number)
    time.sleep(0.02)
"""


def test_ctrl_c_ends_it_cleanly(server: str, ask: Any) -> None:
    online = {"LEAKLINE_SERVER": server, "LEAKLINE_MODE": "online"}
    training = subprocess.Popen([sys.executable, "-c", LIVE], env={**os.environ, **online})
    try:
        deadline = time.monotonic() + 20
        while ask("top", "top/live", "--once").status:
            assert time.monotonic() < deadline
        pid, terminal = _in_a_terminal(server, "top/live")
        first = _read(terminal, "running  ")
        # The screen is redrawn periodically.
        _read(terminal, "\x1b[H")
        os.write(terminal, b"\x03")
        rest = _read(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert "Traceback" not in first + rest
        assert "\x1b[?25h\x1b[?1049l" in rest
    finally:
        training.send_signal(signal.SIGKILL)
        training.wait()


def _shown(**run: Any) -> Shown:
    known = {
        "project": "p", "name": "n", "state": "running", "generations": 0, "total": None, "unit": "minute",
        "rss_bytes": None, "peak_bytes": None, "sparkline": [],
    }  # fmt: skip
    verdict = {
        "status": "learning", "summary": "Learning", "unit": "minute", "growth_bytes_per_generation": None,
        "oom": {"generation": None, "risk": "none", "limit_bytes": None}, "findings": [],
    }  # fmt: skip
    return Shown({**known, **run}, verdict, {"lines": []}, [])


def test_unknown_values_are_not_shown_as_zero() -> None:
    assert frame(_shown()) == ["p/n  running", "learning: Learning", "", "memory  not read yet"]


def test_suspects_come_first_and_programs_without_phases_show_none() -> None:
    row = {"last_count": 5, "rating": "grows"}
    types = [
        {**row, "name": name, "count_per_generation": {"estimate": rate}}
        for name, rate in (("int", 40.0), ("Episode", 2.0))
    ]
    suspects = [
        {"name": "Episode", "role": "type", "count_per_generation": 2.0},
        {"name": "kept", "role": "holder", "count_per_generation": None},
    ]
    empty = _shown()
    finding = {"status": "suspected", "kind": "objects", "phase": None, "suspects": suspects}
    phase_accounts = {"lines": [{"name": "between", "bytes": [5.0]}]}
    lines = frame(Shown(empty.run, {**empty.verdict, "findings": [finding]}, phase_accounts, types))
    assert [line.split()[0] for line in lines[-3:]] == ["type", "Episode", "int"]
    assert not any(line.startswith(("phase", "between")) for line in lines)


def test_no_line_has_control_characters_or_exceeds_the_width() -> None:
    assert frame(_shown(name="a\x1b[2Jb\nc"))[0] == "p/a [2Jb c  running"
    shown = _shown(name="訓練" * 60, sparkline=[float(n) for n in range(500)], rss_bytes=5)
    assert all(columns(line) <= 50 for line in frame(shown, 50))
    assert len(frame(shown, 50, 3)) == 3
    assert cut("訓練訓練", 5) == "訓練…"


def test_a_gap_in_the_trend_is_a_blank() -> None:
    assert sparkline([1.0, None, 2.0], 10) == f"{BARS[0]} {BARS[-1]}"
    assert sparkline([None], 10) == ""
    # A column shows its maximum, so that peaks are never lost.
    assert sparkline([0.0, 9.0, 0.0, 0.0], 2) == f"{BARS[-1]}{BARS[0]}"
