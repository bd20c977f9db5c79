"""Commands and code in the documents run as shown, or are parsed where running them would need a real environment."""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from tests.cli.conftest import DOCS, post_runs, serving

from leakline.cli import COMMANDS, load_command
from leakline.transport.spool_format import read_header


def blocks(document: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / document).read_text(), re.M | re.S)
    return [text for name, text in found if name == language]


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """Return a function that runs shell lines; `leakline` and `python` are those of this environment."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("leakline", " -m leakline"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
        (programs / name).chmod(0o755)

    def run(lines: str, **more: str) -> subprocess.CompletedProcess[str]:
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines], cwd=tmp_path, env={**os.environ, "PATH": path, **more},
            capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip

    return run


def test_the_example_with_an_unmodified_program_works(shell: Any, tmp_path: Path) -> None:
    """Runs one second instead of ten; the output after ten seconds is covered by the tests of `leakline run`."""
    first = blocks("run.md", "sh")[0]
    assert "began + 10" in first
    done = shell(first.replace("began + 10", "began + 1"))
    assert done.returncode == 0, done.stderr
    assert "run grow records to" in done.stderr
    last = done.stderr.strip()
    assert re.search(
        r"leakline: learning: .*; for details: leakline report .*/\.leakline/\w+$", last
    )
    (spool,) = (tmp_path / ".leakline").rglob("*.spool")
    assert read_header(spool)[0].unit == "second"
    expected = (
        r"leakline: suspected: .* keeps \d+ Episode per second.*; for details: leakline report"
    )
    assert re.match(expected, blocks("run.md", "")[0])


def test_the_pytest_example_that_leaks_fails_as_shown(tmp_path: Path) -> None:
    _, failing, settling = blocks("fixes.md", "python")
    (tmp_path / "test_episodes.py").write_text(failing)
    (tmp_path / "test_settling.py").write_text(settling)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "leakline.pytest_plugin"],
        cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    printed, shown = (
        re.sub(r"(1\.9\d|2\.00) MiB", "#", text)
        for text in (done.stdout, blocks("fixes.md", "")[0])
    )
    assert [line for line in shown.splitlines() if line not in printed] == []


@pytest.mark.long
def test_the_ten_command_line_examples_work(
    shell: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (lines,) = (text for text in blocks("run.md", "sh") if text.startswith("leakline runs"))
    assert len(lines.splitlines()) == 10
    # Use a separate server whose newest run is app/fixed, whatever other tests have sent.
    with serving(tmp_path_factory.mktemp("fresh")) as address:
        post_runs(address)
        done = shell(lines, LEAKLINE_SERVER=address)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for name in ("run.md", "leaks.xml", "comparison.json", "frame.json"):
        assert (tmp_path / name).stat().st_size > 0


def test_the_table_lists_every_command() -> None:
    listed = re.findall(r"^\| `leakline ([a-z]+)`", (DOCS / "run.md").read_text(), re.M)
    assert sorted(listed) == sorted(COMMANDS)


def test_the_ci_gates_work_as_shown(shell: Any, server: str, tmp_path: Path) -> None:
    shown = blocks("fixes.md", "sh")[2]
    gate, comment = (
        shown.replace("ci/base", "app/fixed").replace("ci/head", "app/leaking").splitlines()
    )
    done = shell(gate, LEAKLINE_SERVER=server)
    assert (done.returncode, "failed on: leaking, worse" in done.stdout) == (3, True)
    failures = ElementTree.parse(tmp_path / "reports" / "leaks.xml").getroot()[0].get("failures")
    assert failures == "2"
    summary = tmp_path / "summary.md"
    assert shell(comment, LEAKLINE_SERVER=server, GITHUB_STEP_SUMMARY=str(summary)).returncode == 0
    assert summary.read_text().startswith("# fixed → leaking")


def test_the_github_workflow_is_valid_and_selects_our_marker() -> None:
    workflow = dict(yaml.safe_load((DOCS / "github-actions.yml").read_text()))
    # YAML reads the key "on" as true.
    assert set(workflow) == {"name", True, "jobs"}
    (job,) = workflow["jobs"].values()
    assert all({"uses", "run"} & set(step) for step in job["steps"])
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", s["uses"]) for s in job["steps"] if "uses" in s)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    for lines in commands:
        subprocess.run(["bash", "-n", "-c", lines], check=True)
    (line,) = [each for each in commands if each.startswith("pytest")]
    assert shlex.split(line)[1:3] == ["-m", "leakline"]


@pytest.mark.parametrize(
    "document",
    ["github-actions.yml", "run.md", "quickstart.md", "alerts.md", "operating.md", "fixes.md", "access.md",
     "settings.md", "other-tools.md", "reference/commands.md"],
)  # fmt: skip
def test_every_documented_command_and_option_exists(document: str) -> None:
    text = (DOCS / document).read_text()
    if document.endswith(".md"):
        text = "\n".join(blocks(document, "sh"))
    commands = re.findall(r"(?<![\w/.=-])leakline ([a-z]+)([^|)>&\n]*)", text)
    assert commands
    for name, rest in commands:
        parser = argparse.ArgumentParser(exit_on_error=False)
        load_command(name).configure(parser)
        words = shlex.split(rest.partition(" #")[0])
        parser.parse_args([word.replace("41723", "1") for word in words])


def test_the_examples_for_finding_a_leak_record_a_run(shell: Any, tmp_path: Path) -> None:
    _, program = blocks("quickstart.md", "python")
    (tmp_path / "train.py").write_text(program)
    done = shell("python train.py", LEAKLINE_MODE="offline")
    assert done.returncode == 0, done.stderr
    assert "evaluate" in done.stdout
    assert list((tmp_path / ".leakline").rglob("*.spool"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not the C library of the page")  # fmt: skip
def test_freed_memory_stays_as_documented(shell: Any, tmp_path: Path) -> None:
    (program,) = blocks("memory.md", "python")
    (tmp_path / "see.py").write_text(program)
    done = shell("python see.py")
    alive, freed, given_back = (int(n) for n in re.findall(r": (\d+) MiB", done.stdout))
    assert freed > 0.9 * alive and given_back < 0.3 * alive
    words = re.sub(r"\d+", "#", done.stdout)
    assert words == re.sub(r"\d+", "#", blocks("memory.md", "")[0])


def test_the_checks_of_a_fix_print_as_documented(shell: Any, server: str) -> None:
    command, answer, *_ = blocks("fixes.md", "sh")[0].splitlines()
    done = shell(command, LEAKLINE_SERVER=server)
    assert (done.returncode, f"# {done.stdout}") == (3, f"{answer}\n")
