"""Programs without a line of Leakline: `leakline run` and ``leakline.auto()`` add the frameworks' callbacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.programs import Place

from .conftest import PROGRAMS, Ended
from .test_framework_loops import ACTIVE, CASES, Case, lines

CALL = re.compile(r",? ?LeaklineCallback\([^)]*\)(, )?")


def without_leakline(program: str) -> str:
    """Return the text of a program without its lines of Leakline."""
    text = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    found = CALL.sub("", re.sub(r"from leakline.*\n", "", text))
    assert "eakline" not in found
    return found


each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
RunPlain = Callable[..., Ended]


@pytest.fixture
def run_plain(run_program: Callable[..., Ended], tmp_path: Path) -> RunPlain:
    """Return a function that runs a framework's program without lines of Leakline: (case, way, variant, ...)."""

    def run(case: Case, way: str, variant: str, *more: str) -> Ended:
        text, script = without_leakline(case.program), tmp_path / "train.py"
        if way == "auto":
            before, future, after = text.partition("from __future__ import annotations\n")
            text = f"{before}{future}import leakline\nleakline.auto()\n{after}"
        script.write_text(text, encoding="utf-8")
        launch = ["-m", "leakline", "run", "--", sys.executable] if way == "run" else []
        name = f"{case.name}-{way}-{variant}"
        return run_program([*launch, str(script)], name, variant, *more)

    return run


@each
@pytest.mark.parametrize("way", ["run", "auto"])
def test_a_leak_of_an_unmodified_program_is_named_with_its_phase(
    run_plain: RunPlain, case: Case, way: str
) -> None:
    ended = run_plain(case, way, "leak")
    assert ended.status == 0, ended.errors
    assert ended.final_state()["state"] == "finished"
    assert lines(ended.phase_accounts()) == set(case.phases)
    verdict = ended.verdict(case.generations)
    assert verdict["status"] == "confirmed", verdict["summary"]
    (finding,) = [f for f in verdict["findings"] if f["status"] in ACTIVE]
    assert finding["phase"] == case.phase
    assert any("Keeper.kept" in suspect["name"] for suspect in finding["suspects"]), finding


@pytest.mark.parametrize("program", ["with_keras", "with_lightning"])
def test_few_epochs_of_an_unmodified_program_are_divided(run_plain: RunPlain, program: str) -> None:
    (case,) = (case for case in CASES if case.program == program)
    ended = run_plain(case, "run", "healthy", "5")
    assert ended.status == 0, ended.errors
    assert (ended.final_state()["unit"], ended.final_state()["total"]) == ("generation", 25)
    verdict = ended.verdict(25)
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE], verdict["summary"]
    (note,) = [e["data"]["text"] for e in ended.events() if e["kind"] == "note"]
    assert note == "a generation is 1/5 of an epoch"


@each
def test_a_healthy_unmodified_program_has_no_findings(run_plain: RunPlain, case: Case) -> None:
    ended = run_plain(case, "run", "healthy")
    assert ended.status == 0, ended.errors
    verdict = ended.verdict(case.generations)
    assert not [f for f in verdict["findings"] if f["status"] in ACTIVE], verdict["summary"]
    assert lines(ended.phase_accounts()) == set(case.phases)


@each
def test_an_exception_of_an_unmodified_program_is_its_own(run_plain: RunPlain, case: Case) -> None:
    ended = run_plain(case, "run", "raise")
    assert ended.status == 1
    assert "ZeroDivisionError: planted" in ended.errors
    assert ended.final_state()["state"] == "failed"


# -- what the callbacks must not change

FRAMEWORKS = ["transformers", "lightning", "pytorch_lightning", "keras", "sb3"]
ALONE = str(PROGRAMS / "trains_alone.py")
# How the program trains -> generations.
GENERATIONS = {"once": 6, "twice": 12, "own": 6, "within": 6}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("how", GENERATIONS)
def test_a_recorded_training_gives_the_same_weights(
    tmp_path: Path, framework: str, how: str
) -> None:
    """Also with two trainings in one program, with the program's own callback and with a training within another."""
    place = Place(tmp_path)
    command = [sys.executable, ALONE, framework, how]
    plain = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "LEAKLINE_MODE": "disabled"}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    said = place.run(command, LEAKLINE_MAX_OVERHEAD="0.25")
    assert said.returncode == 0, said.stderr
    assert weights(said.stdout) == weights(plain.stdout)
    begun = 2 if how == "twice" else 1
    assert f"recorded trainings: {begun}" in said.stderr.splitlines(), said.stderr
    assert "failed" not in said.stderr
    assert said.stderr.count("leakline: run ") == 1, said.stderr
    (recorded,) = place.recorded()
    assert recorded.header.unit in ("epoch", "step", "generation")
    assert recorded.header.project == ("own" if how == "own" else "")
    assert recorded.how == ("finished", "")
    ends = [s.generation for s in recorded.snapshots if s.kind == "generation_end"]
    assert ends == list(range(GENERATIONS[how]))
    phases = {s.label.rpartition(" ")[2] for s in recorded.snapshots if s.kind == "phase_end"}
    # The rollouts of this program are too short for a phase of their own.
    assert phases == {"learn"} if framework == "sb3" else phases > {"train"}


def weights(output: str) -> list[str]:
    """Return the lines with trained weights and the next random number."""
    return [line for line in output.splitlines() if not line.startswith("{")]


@pytest.mark.parametrize(
    ("options", "unit", "trainings"),
    [(("--tag", "night"), "epoch", 1), (("--tag", "night", "--per", "second"), "second", 0)],
)
def test_options_of_the_command_apply_and_a_given_interval_wins(
    tmp_path: Path, options: tuple[str, ...], unit: str, trainings: int
) -> None:
    place = Place(tmp_path)
    said = place.run([sys.executable, ALONE, "keras", "once"], *options)
    assert said.returncode == 0, said.stderr
    assert f"recorded trainings: {trainings}" in said.stderr.splitlines()
    (recorded,) = place.recorded()
    assert (recorded.header.unit, tuple(recorded.header.tags)) == (unit, ("night",))
