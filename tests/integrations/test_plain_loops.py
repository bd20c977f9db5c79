"""Generations and phases that `leakline run` finds in loops of JAX and TensorFlow without a framework."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from .conftest import PROGRAMS, Ended
from .test_framework_loops import ACTIVE, lines

RunProgram = Callable[..., Ended]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
LIBRARIES = {"jax": {"train", "eval_step"}, "tensorflow": {"train", "eval_step", "checkpoint"}}
each = pytest.mark.parametrize("library", LIBRARIES)


def run_plain(run_program: RunProgram, library: str, variant: str) -> Ended:
    script = str(PROGRAMS / f"plain_{library}.py")
    command = ["-m", "leakline", "run", "--", sys.executable, script]
    return run_program(command, f"plain-{library}-{variant}", variant, **QUIET)


@each
def test_a_leak_is_named_with_its_phase(run_program: RunProgram, library: str) -> None:
    ended = run_plain(run_program, library, "leak")
    verdict = ended.final_verdict()
    assert verdict["unit"] == "generation"
    found = [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert [f["phase"] for f in found] == ["eval_step"], verdict["summary"]
    names = " ".join(suspect["name"] for suspect in found[0]["suspects"])
    assert "main.<locals>.predictions" in names
    (note,) = [e["data"]["text"] for e in ended.events() if e["kind"] == "note"]
    assert note == "a generation is 10 training steps, found in the program's calls"


@each
def test_a_healthy_loop_has_no_finding_and_computes_the_same(
    run_program: RunProgram, library: str
) -> None:
    ended = run_plain(run_program, library, "healthy")
    verdict = ended.final_verdict()
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE], verdict["summary"]
    assert lines(ended.phase_accounts()) == LIBRARIES[library]
    script = str(PROGRAMS / f"plain_{library}.py")
    plain = subprocess.run(
        [sys.executable, script, "healthy"], capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.output.splitlines()[-1] == plain.stdout.splitlines()[-1]
