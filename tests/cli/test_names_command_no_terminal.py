"""Names come from whatever was recorded: printed, they must not command a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import GENERATIONS, MIB, STARTED, made_snapshots

from leakline.cli.asking import Asker
from leakline.snapshot import Batch, ProcessIdentity, RunHeader, Snapshot
from leakline.spool_file import SpoolFile

# Sets the title of a terminal, and clears it.
EVIL = "Evil\x1b]0;pwn\x07\x1b[2J\u202e"
SHOWN = "Evil ]0;pwn  [2J"


def hostile_snapshots() -> Iterator[Snapshot]:
    for each in made_snapshots(20 * MIB):
        samples = {name.replace("Environment", EVIL): n for name, n in each.samples.items()}
        yield replace(each, label=f"{each.label} {EVIL}", samples=samples, events=())


def is_plain(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def test_the_report_of_a_hostile_spool_is_plain(leakline: Any, tmp_path: Path) -> None:
    path = tmp_path / "run" / "one.spool"
    process = ProcessIdentity("one")
    spool = SpoolFile(path, RunHeader("run", "p", "n", "generation", None, STARTED), process)
    spool.append(Batch(process, tuple(hostile_snapshots())))
    spool.close()
    said = leakline("report", str(tmp_path))
    assert (said.status, said.errors) == (0, "")
    assert SHOWN in said.output
    assert is_plain(said.output)
    told = json.loads(leakline("report", str(tmp_path), "--json").output)
    assert len(told["items"]) == 1
    assert f"{GENERATIONS} generations" in said.output


@pytest.mark.parametrize(
    "command",
    [
        ("verdict", "app/leaking"),
        ("verdict", "app/leaking", "--markdown"),
        ("compare", "app/fixed", "app/leaking"),
        ("compare", "app/fixed", "app/leaking", "--markdown"),
        ("runs",),
        ("top", "app/leaking", "--once"),
    ],
)
def test_the_answers_of_a_hostile_server_are_plain(
    leakline: Any, server: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    ask = Asker.get

    def hostile(self: Asker, path: str, query: Any = None) -> Any:
        evil = json.dumps(EVIL)[1:-1]
        answer = json.dumps(ask(self, path, query)).replace("Environment", evil)
        for start in ('"summary": "', '"state": "finished'):
            answer = answer.replace(start, start + evil)
        return json.loads(answer)

    monkeypatch.setattr(Asker, "get", hostile)
    said = leakline(*command, "--server", server)
    assert (said.status, said.errors) == (0, "")
    assert "Evil" in said.output
    assert is_plain(said.output)


def test_errors_are_plain_too(leakline: Any, server: str) -> None:
    said = leakline("verdict", f"app/{EVIL}", "--server", server)
    assert said.status == 1
    assert is_plain(said.errors)
