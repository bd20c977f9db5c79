"""What every command prints: one-line errors, no terminal control characters, and output that nothing reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import GENERATIONS, MIB, STARTED, made_snapshots

import leakline as leakline_itself
from leakline.cli import COMMANDS, GROUPS
from leakline.cli.commands import demo
from leakline.cli.server_queries import Asker
from leakline.snapshot import Batch, ProcessIdentity, RunHeader
from leakline.transport.spool_file import SpoolFile

# Sets the title of a terminal and clears it.
EVIL = "Evil\x1b]0;pwn\x07\x1b[2J\u202e"


def is_plain(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "command", ["runs", "verdict app/leaking", "compare run1 run2", "top run1"]
)
def test_without_a_server_commands_explain_how_to_start_one(
    leakline: Any, nowhere: str, command: str
) -> None:
    said = leakline(*command.split(), "--server", nowhere)
    assert (said.status, said.output) == (1, "")
    assert nowhere in said.error and "leakline serve" in said.error


@pytest.mark.parametrize("run", ["nobody/leaking", "app/leak", f"app/{EVIL}"])
def test_an_unknown_name_is_repeated_without_control_characters(ask: Any, run: str) -> None:
    said = ask("verdict", run)
    assert said.status == 1
    assert is_plain(said.errors)
    assert run == f"app/{EVIL}" or run.rpartition("/")[2] in said.error


@pytest.mark.parametrize("command", ["verdict unknown", "top unknown", "compare run1 unknown"])
def test_an_unknown_run_id_points_to_the_list_of_runs(ask: Any, server: str, command: str) -> None:
    said = ask(*command.split())
    assert said.status == 1
    assert said.error == f"leakline: no run 'unknown' on {server}; list them with: leakline runs"


def test_an_invalid_address_is_a_usage_error(leakline: Any) -> None:
    said = leakline("runs", "--server", "nonsense")
    assert said.status == 2
    assert "'nonsense'" in said.error


def test_help_lists_all_commands_by_group_on_one_screen(leakline: Any) -> None:
    lines = leakline("--help").output.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert [line[:-1] for line in lines if line.endswith(":")] == list(GROUPS)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 84


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(leakline: Any, command: str) -> None:
    said = leakline(command, "--help")
    assert said.status == 0
    assert f"leakline {command}" in said.output.partition("example: ")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("wrong", "program", "said"),
    [
        ((), "leakline", ""), (("frob",), "leakline", "frob"), (("compare", "run1"), "leakline compare", ""),
        (("runs", "--limit", "x"), "leakline runs", "x"), (("top", "run1", "--json"), "leakline top", "--once"),
        (("runs", "--limit", "0"), "leakline runs", ""), (("drill", "objects", "--frob"), "leakline drill", "--frob"),
        (("token", "forge"), "leakline token", "forge"), (("watch", "a\nb"), "leakline watch", ""),
        (("compare", "a", "b", "--fail-on=leaking,bad"), "leakline compare", "refuted, fixed, improved"),
        (("compare", "a", "b", "--fail-on="), "leakline compare", "refuted, fixed, improved"),
        (("compare", "a", "b", "--json", "--markdown"), "leakline compare", "not allowed with"),
        (("verdict", "a", "--json", "--markdown"), "leakline verdict", "not allowed with"),
        (("verdict", "a", "--fail-on", "worse"), "leakline verdict", "failed, refuted"),
        (("report", ".", "--markdown", "--since", "baseline"), "leakline report", "not allowed with"),
        (("top", "a", "--every=0"), "leakline top", ""), (("top", "a", "--every=never"), "leakline top", ""),
    ],
)  # fmt: skip
def test_a_usage_error_is_one_line_that_points_to_the_help(
    leakline: Any, wrong: tuple[str, ...], program: str, said: str
) -> None:
    answer = leakline(*wrong)
    assert (answer.status, answer.output) == (2, "")
    assert answer.error.startswith(f"{program}: ") and said in answer.error
    assert answer.error.endswith(f"; see: {program} --help")


def test_a_demo_without_torch_explains_how_to_install_it(
    leakline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package that does not exist replaces torch, as on a machine without it.
    monkeypatch.setattr(demo, "NEEDED", ("torch_that_is_not_here", "numpy"))
    said = leakline("demo", "--exit")
    assert said.status == 1
    assert "torch" in said.error and "pip install" in said.error
    assert (demo.example_folder() / "erl_trading" / "trainer.py").is_file()


def test_an_uninstalled_checkout_has_a_version_and_its_commands(tmp_path: Path) -> None:
    # Without `site` no package metadata is found, as for a user who runs a fresh clone.
    folder = str(Path(leakline_itself.__file__).parents[1])
    version = f"leakline {leakline_itself.__version__}\n"
    for arguments, said in ((("--version",), version), (("report", "--markdown", "."), "")):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "leakline", *arguments],
            cwd=tmp_path, env={"PYTHONPATH": folder}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout == said
        assert "Traceback" not in done.stderr


# -- closed and full outputs -------------------------------------------------------------------------------


def ended(output: int | None, *arguments: str) -> tuple[int, str]:
    """Run the program in its own process; return exit status and stderr. ``output`` None: stdout is closed."""
    command = [sys.executable, "-m", "leakline", *arguments]
    if output is None:
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr


@pytest.fixture
def nobody_reads() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_closed_pipe_is_no_failure_and_gates_still_fail(
    server: str, nobody_reads: int, tmp_path: Path
) -> None:
    assert ended(nobody_reads, "top", "run1", "--server", server) == (0, "")
    assert ended(None, "verdict", "run1", "--json", "--server", server) == (0, "")
    file = tmp_path / "leaks.xml"
    gate = ("verdict", "app/leaking", "--fail-on", "leaking", "--junit", str(file))
    assert ended(nobody_reads, *gate, "--server", server) == (3, "")
    assert "<failure" in file.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_to_a_full_disk_is_a_one_line_error(server: str) -> None:
    with Path("/dev/full").open("wb") as full:
        status, errors = ended(full.fileno(), "runs", "--server", server)
    assert status == 1
    (line,) = errors.splitlines()
    assert line.startswith("leakline: cannot write to standard output (No space left on device)")


# -- names can contain anything ----------------------------------------------------------------------------


def test_the_report_of_a_hostile_spool_has_no_control_characters(
    leakline: Any, tmp_path: Path
) -> None:
    snapshots = tuple(
        replace(
            each,
            label=f"{each.label} {EVIL}",
            samples={name.replace("Environment", EVIL): n for name, n in each.samples.items()},
            events=(),
        )
        for each in made_snapshots(20 * MIB)
    )
    process = ProcessIdentity("one")
    header = RunHeader("run", "p", "n", "generation", None, STARTED)
    spool = SpoolFile(tmp_path / "run" / "one.spool", header, process)
    spool.append(Batch(process, snapshots))
    spool.close()
    said = leakline("report", str(tmp_path))
    assert (said.status, said.errors) == (0, "")
    assert "Evil ]0;pwn  [2J" in said.output and f"{GENERATIONS} generations" in said.output
    assert is_plain(said.output)


@pytest.mark.parametrize(
    "command",
    [
        "verdict app/leaking", "verdict app/leaking --markdown", "compare app/fixed app/leaking",
        "compare app/fixed app/leaking --markdown", "runs", "top app/leaking --once",
    ],
)  # fmt: skip
def test_answers_of_a_hostile_server_have_no_control_characters(
    ask: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    request = Asker._request

    def hostile(self: Asker, path: str, query: Any, base: str) -> Any:
        evil = json.dumps(EVIL)[1:-1]
        answer = json.dumps(request(self, path, query, base)).replace("Environment", evil)
        for start in ('"summary": "', '"state": "finished'):
            answer = answer.replace(start, start + evil)
        return json.loads(answer)

    monkeypatch.setattr(Asker, "_request", hostile)
    said = ask(*command.split())
    assert (said.status, said.errors) == (0, "")
    assert "Evil" in said.output
    assert is_plain(said.output)
