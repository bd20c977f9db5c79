from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leakline as leakline_itself
from leakline.cli import COMMANDS as ALL

COMMANDS = (("runs",), ("verdict", "app/leaking"), ("compare", "run1", "run2"), ("top", "run1"))


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_server_it_says_how_to_start_one(
    leakline: Any, nowhere: str, command: tuple[str, ...]
) -> None:
    said = leakline(*command, "--server", nowhere)
    assert said.status == 1
    assert said.output == ""
    (line,) = said.errors.splitlines()
    assert nowhere in line
    assert "leakline serve" in line


@pytest.mark.parametrize("run", ["app/nobody", "nobody/leaking", "unknown"])
def test_an_unknown_run_is_named(leakline: Any, server: str, run: str) -> None:
    said = leakline("verdict", run, "--server", server)
    assert said.status == 1
    (line,) = said.errors.splitlines()
    assert run.rpartition("/")[2] in line


def test_a_part_of_a_name_is_not_the_run(leakline: Any, server: str) -> None:
    assert leakline("verdict", "app/leak", "--server", server).status == 1


@pytest.mark.parametrize("wrong", ["leaky", "leaking,bad", ""])
def test_an_unknown_condition_is_wrong_use(leakline: Any, server: str, wrong: str) -> None:
    said = leakline("compare", "run1", "run2", "--server", server, f"--fail-on={wrong}")
    assert said.status == 2
    assert "refuted, fixed, improved" in said.errors


def test_a_wrong_address_is_wrong_use(leakline: Any) -> None:
    said = leakline("runs", "--server", "nonsense")
    assert said.status == 2
    assert "'nonsense'" in said.errors


@pytest.mark.parametrize("command", ALL)
def test_help_shows_an_example(leakline: Any, command: str) -> None:
    said = leakline(command, "--help")
    assert said.status == 0
    assert f"leakline {command}" in said.output.partition("example: ")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("wrong", "program"),
    [
        ((), "leakline"), (("frob",), "leakline"), (("compare", "run1"), "leakline compare"),
        (("runs", "--limit", "x"), "leakline runs"), (("top", "run1", "--json"), "leakline top"),
        (("runs", "--limit", "0"), "leakline runs"), (("drill", "instances", "--frob"), "leakline drill"),
        (("token", "forge"), "leakline token"), (("watch", "a\nb"), "leakline watch"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_that_says_where_help_is(
    leakline: Any, wrong: tuple[str, ...], program: str
) -> None:
    said = leakline(*wrong)
    assert (said.status, said.output) == (2, "")
    (line,) = said.errors.splitlines()
    assert line.startswith(f"{program}: ")
    assert line.endswith(f"; see: {program} --help")


def test_an_id_that_is_unknown_is_looked_for_in_the_list(leakline: Any, server: str) -> None:
    for command in (("verdict", "unknown"), ("top", "unknown"), ("compare", "run1", "unknown")):
        said = leakline(*command, "--server", server)
        assert said.status == 1
        (line,) = said.errors.splitlines()
        assert line == f"leakline: no run 'unknown' on {server}; list them with: leakline runs"


@pytest.mark.parametrize(("option", "value"), [("--port", "99999"), ("--host", "a b")])
def test_a_wrong_option_of_the_server_is_not_called_a_variable(
    leakline: Any, option: str, value: str
) -> None:
    said = leakline("serve", option, value)
    assert said.status == 2
    (line,) = said.errors.splitlines()
    assert line.startswith(f"leakline: argument {option}={value!r}: must be ")


def test_a_checkout_that_is_not_installed_has_a_version_and_its_commands(tmp_path: Path) -> None:
    """Without what `site` brings there is no metadata of a package, as for who runs it where it was cloned."""
    folder = str(Path(leakline_itself.__file__).parents[1])
    for arguments, said in (
        (("--version",), f"leakline {leakline_itself.__version__}\n"),
        (("report", "--markdown", "."), ""),
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "leakline", *arguments],
            cwd=tmp_path, env={"PYTHONPATH": folder}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout == said
        assert "Traceback" not in done.stderr


def ended(output: int | None, *arguments: str) -> tuple[int, str]:
    """Of the program in a process of its own: exit status and standard error. ``output`` None: closed."""
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


@pytest.mark.parametrize("command", [("runs",), ("verdict", "run1", "--json"), ("top", "run1")])
def test_nobody_who_reads_is_no_failure(
    server: str, nobody_reads: int, command: tuple[str, ...]
) -> None:
    assert ended(nobody_reads, *command, "--server", server) == (0, "")
    assert ended(None, *command, "--server", server) == (0, "")


def test_a_gate_closes_and_writes_its_file_also_where_nobody_reads(
    server: str, nobody_reads: int, tmp_path: Path
) -> None:
    file = tmp_path / "leaks.xml"
    gate = ("verdict", "app/leaking", "--fail-on", "leaking", "--junit", str(file))
    assert ended(nobody_reads, *gate, "--server", server) == (3, "")
    assert "<failure" in file.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_below_the_output_is_one_line(server: str) -> None:
    with Path("/dev/full").open("wb") as full:
        status, errors = ended(full.fileno(), "runs", "--server", server)
    assert status == 1
    (line,) = errors.splitlines()
    assert line.startswith("leakline: standard output cannot be written (No space left on device)")
