"""`make test-mutation` counts what a test noticed and nothing else: not what pytest could not even run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.mutation.__main__ import Drawn, Known, know, noticed
from tests.mutation.mutants import Mutant, mutants

CODE = """\
LIMIT = (1, 2, 3)[2]


def add(first, second):
    return first + second


def forgotten(first):
    return first - LIMIT


STEP = 7


class Counter:
    width: int = 9

    def next_of(self, number):
        return number + STEP + self.width
"""
# What Hypothesis calls has no frame of a test around it.
TESTS = """\
import pytest
import sums
from hypothesis import given, settings, strategies


@settings(max_examples=5, database=None)
@given(strategies.integers(1, 9))
def test_drawn(number):
    assert sums.add(number, 1) > number


def test_next():
    assert sums.Counter().next_of(1) > 1


class TestAdding:
    @pytest.mark.parametrize("number", [2, 3])
    def test_given(self, number):
        assert sums.add(number, 1) == number + 1
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "code").mkdir()
    (root / "code" / "sums.py").write_text(CODE)
    (root / "test_sums.py").write_text(TESTS)
    return root


@pytest.fixture(scope="module")
def known(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Known:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(project / "code"))
        return know(
            tmp_path_factory.mktemp("known"), "sums", project / "code", "test_sums.py", project
        )


def drawn(project: Path, words: str) -> Drawn:
    source = project / "code" / "sums.py"
    (mutant,) = [each for each in mutants(CODE) if each.change.startswith(words)]
    return Drawn("sums", "sums", source, mutant)


def test_who_takes_a_line_is_a_test_that_pytest_knows(project: Path, known: Known) -> None:
    one = drawn(project, "first + second")
    both = {"test_sums.py::test_drawn", "test_sums.py::TestAdding::test_given"}
    assert {*known.of(one)} == both
    assert all(known.seconds[test] > 0 for test in both)
    assert known.of(drawn(project, "first - LIMIT")) == []


def test_a_test_that_fails_before_anything_is_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sums.py").write_text(CODE)
    (tmp_path / "test_sums.py").write_text("def test_wrong():\n    assert not 'as it should be'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    with pytest.raises(SystemExit, match=r"(?s)nothing was changed.*test_wrong"):
        know(tmp_path, "sums", tmp_path / "code", "test_sums.py", tmp_path)


def test_only_a_test_that_fails_has_noticed_a_change(
    project: Path, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(project / "code"))
    changed = drawn(project, "first + second")
    assert noticed(known, tmp_path, changed, project)
    unchanged = Drawn("sums", "sums", changed.source, Mutant(-1, changed.mutant.line, "nothing"))
    assert not noticed(known, tmp_path, unchanged, project)
    assert not noticed(known, tmp_path, drawn(project, "first - LIMIT"), project)


def test_a_run_of_pytest_that_runs_no_test_is_no_score(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(project / "code"))
    changed = drawn(project, "first + second")
    nowhere = "hypothesis/internal/engine.py::test_function"
    line = (str(changed.source), changed.mutant.line)
    with pytest.raises(SystemExit, match="pytest ended with 4"):
        noticed(Known({line: {nowhere}}, {nowhere: 0.0}), tmp_path, changed, project)


def test_what_tests_cannot_be_collected_with_any_more_is_noticed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of tests may call the code while it is collected."""
    monkeypatch.setenv("PYTHONPATH", str(project / "code"))
    (project / "test_early.py").write_text(
        "import sums\nassert sums.add(1, 2) == 3\n\ndef test_nothing():\n    pass\n"
    )
    changed, test = drawn(project, "first + second"), "test_early.py::test_nothing"
    line = (str(changed.source), changed.mutant.line)
    assert noticed(Known({line: {test}}, {test: 0.0}), tmp_path, changed, project)


def test_code_that_cannot_be_imported_any_more_is_noticed(
    project: Path, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(project / "code"))
    source = project / "code" / "sums.py"
    index = [each for each in mutants(CODE) if each.line == 1 and each.change == "2 -> 5"][-1]
    # Nobody takes a line of a module that was imported before any test: told here who would.
    line, test = (str(source), 1), "test_sums.py::test_drawn"
    everybody = Known({line: {test}}, known.seconds)
    assert noticed(everybody, tmp_path, Drawn("sums", "sums", source, index), project)


@pytest.mark.parametrize("words", ["7 ->", "9 ->"])
def test_a_constant_belongs_to_who_reads_it(project: Path, known: Known, words: str) -> None:
    assert known.of(drawn(project, words)) == ["test_sums.py::test_next"]


def test_a_constant_that_no_test_has_read_is_nobodys(project: Path, known: Known) -> None:
    (one, *_) = [each for each in mutants(CODE) if each.line == 1]
    assert known.of(Drawn("sums", "sums", project / "code" / "sums.py", one)) == []
