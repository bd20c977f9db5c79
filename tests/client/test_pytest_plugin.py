"""The pytest plugin: real pytest runs of tests that leak and of tests that do not."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

import leakline
from leakline.testing import MeasuredRun

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Said:
    status: int
    output: str

    @property
    def counts(self) -> dict[str, int]:
        (line,) = [line for line in self.output.splitlines() if re.search(r" in [\d.]+s", line)]
        return {
            word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line.split(" in ")[0])
        }


@dataclass(frozen=True)
class Place:
    folder: Path

    def pytest(self, text: str, *options: str, plugin: str = "leakline.pytest_plugin") -> Said:
        """Run tests in their own process with no plugin but ours."""
        (self.folder / "test_it.py").write_text("import pytest\n" + textwrap.dedent(text))
        load = ("-p", plugin) if plugin else ()
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *load, *options, "test_it.py"],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        return Said(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_measured_run_that_fails_at_its_end_removes_its_hook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(kind: str) -> None:
        raise OSError("planned")

    hooks, run = len(gc.callbacks), MeasuredRun()
    with pytest.raises(OSError, match="planned"), run:
        assert run._loop is not None
        monkeypatch.setattr(run._loop.sampler, "measure", fail)
    assert len(gc.callbacks) == hooks
    assert leakline.current() is not run


def test_leaking_tests_fail_with_verdict_and_holder_and_healthy_ones_pass(place: Place) -> None:
    said = place.pytest(
        """
        import functools, gc
        import leakline

        class Episode:
            def __init__(self, size=2_000_000):
                self.steps = bytearray(size)

        kept, cache, calls = [], {}, []

        @pytest.mark.leakline(max_growth="1 MiB", generations=5)
        def test_leaking():
            kept.append(Episode())

        @pytest.mark.leakline
        def test_healthy():
            calls.append(1)
            Episode().steps[0] = 1

        @pytest.mark.leakline
        def test_a_cache_that_fills_once():
            cache.setdefault("episode", Episode())

        @pytest.mark.leakline
        def test_garbage_in_cycles_is_taken():
            one = Episode()
            one.me = one

        @pytest.mark.leakline(max_growth="3 MiB")
        def test_allowed():
            kept.append(Episode())

        @pytest.mark.leakline
        def test_that_fails_by_itself():
            assert len(calls) == 0, "its own"

        @pytest.mark.leakline
        def test_with_a_run_of_its_own(leakline_run):
            for number in range(6):
                with leakline_run.generation(number):
                    with leakline.current().phase("rollout"):
                        kept.append(Episode())
                    with leakline_run.phase("train"):
                        Episode()

        @pytest.mark.leakline
        def test_too_few(leakline_run):
            with leakline_run.generation(0):
                pass

        def test_untouched():
            assert len(calls) == 7, "called once to warm up, then six times"
            assert leakline.current().id == ""
        """,
        "--junit-xml", "report.xml",
    )  # fmt: skip
    assert said.counts == {"failed": 4, "passed": 5}, said.output
    leaking, by_itself, own, few = re.split(r"\n_+ test_\w+ _+\n", said.output)[1:]
    assert re.search(
        r"leakline: the test retains at least 1\.9\d MiB per call after 1 warm-up call;", leaking
    )
    assert "the limit is 1.00 MiB" in leaking
    assert "The run keeps 1 Episode per generation" in leaking
    assert "held by: test_it.kept[*]" in leaking
    assert "its own" in by_itself
    assert "rollout keeps 1 Episode" in own
    assert "had 1 generation; a verdict needs at least 5" in few
    cases = ElementTree.parse(place.folder / "report.xml").getroot().iter("testcase")
    by_name = {case.get("name"): case for case in cases}
    told = {p.get("name"): p.get("value") for p in by_name["test_leaking"].iter("property")}
    assert float(str(told["leakline_growth_bytes_per_generation"])) > 1_900_000
    failure = by_name["test_leaking"].find("failure")
    assert "keeps 1 Episode per generation" in str(failure.text)
    assert by_name["test_healthy"].find("failure") is None


def test_a_wrong_marker_is_reported_and_its_test_is_not_called(place: Place) -> None:
    wrong = {
        "max_growth='much'": "max_growth",
        "generations=2": "at least 5",
        "warm_up=-1": "at least 0",
        "growth=1": "unexpected keyword argument 'growth'; the marker takes max_growth, generations, warm_up, collect",
    }
    text = "".join(
        f"@pytest.mark.leakline({arguments})\ndef test_{number}():\n    raise SystemError('called')\n"
        for number, arguments in enumerate(wrong)
    )
    said = place.pytest(text)
    assert said.counts == {"failed": 4}
    assert "SystemError" not in said.output
    assert "During handling" not in said.output
    for part, why in zip(
        re.split(r"\n_+ test_\w+ _+\n", said.output)[1:], wrong.values(), strict=True
    ):
        assert why in part


def test_a_test_that_cannot_be_repeated_fails(
    place: Place,
) -> None:
    (place.folder / "conftest.py").write_text(
        textwrap.dedent(
            """
            from _pytest.runner import runtestprotocol

            def pytest_runtest_protocol(item, nextitem):
                # Plugins that repeat a failed test do this.
                runtestprotocol(item, log=False, nextitem=item)
                for report in runtestprotocol(item, log=False, nextitem=nextitem):
                    item.ihook.pytest_runtest_logreport(report=report)
                return True
            """
        )
    )
    said = place.pytest(
        """
        import unittest
        kept, calls = [], []

        class TestOld(unittest.TestCase):
            @pytest.mark.leakline
            def test_leaking(self):
                kept.append(bytearray(3_000_000))

        class TestPlain:
            @pytest.mark.leakline(generations=5)
            def test_healed(self):
                calls.append(1)
                if len(calls) <= 6:
                    kept.append(bytearray(3_000_000))

        def test_calls():
            assert (len(calls), len(kept)) == (12, 6)
        """
    )
    assert said.counts == {"passed": 2, "error": 1}, said.output
    assert "test_leaking is not a test function" in said.output


def test_tests_without_the_marker_do_not_load_leakline(place: Place) -> None:
    said = place.pytest(
        """
        import sys
        def test_it():
            assert "torch" not in sys.modules
            assert "leakline.testing" not in sys.modules
            assert "leakline.analysis.examination" not in sys.modules
        """,
        "--strict-markers",
    )
    assert said.status == 0, said.output


@pytest.mark.long
def test_the_plugin_loads_by_entry_point_and_can_be_disabled_by_name(place: Place) -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    told = place.folder / "found-0.dist-info"
    told.mkdir()
    lines = [f"{name} = {where}" for name, where in points["pytest11"].items()]
    (told / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]) + "\n")
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: found\nVersion: 0\n")
    # pytest uses this to find modules to rewrite, and warns about those loaded before it.
    (told / "RECORD").write_text("leakline/__init__.py,,\nleakline/pytest_plugin.py,,\n")
    text = "@pytest.mark.leakline\ndef test_it(leakline_run):\n    pass\n"
    (place.folder / "test_it.py").write_text(f"import pytest\n{text}")
    strict = ("-W", "error::pytest.PytestAssertRewriteWarning")
    for options, status, words in (
        ((), 1, "had 0 generations"),
        (("-p", "no:leakline"), 1, "fixture 'leakline_run' not found"),
    ):
        done = subprocess.run(
            [
                sys.executable, "-m", "leakline", "run", "--mode", "offline", "--",
                sys.executable, "-m", "pytest", "-q", *strict, "-p", "no:cacheprovider", *options, "test_it.py",
            ],
            cwd=place.folder, env={**os.environ, "PYTHONPATH": str(place.folder)},
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        assert (done.returncode, words in done.stdout) == (status, True), done.stdout + done.stderr
