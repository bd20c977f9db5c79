"""Behaviour shared by the callbacks of all frameworks: who owns the run, who counts generations, and missing ends."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.errors import MissingPackage
from leakline.integrations.training import (
    Place,
    Training,
    bracket,
    calling,
    checked,
    checked_steps,
    missing,
)
from leakline.transport.spool_format import read_batches, read_end, read_header

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return checked("Callback", {"mode": "offline", "quiet": True, "directory": tmp_path})


def fit(training: Training, generations: int, first: int = 0) -> None:
    training.begin("epoch", generations)
    for number in range(first, first + generations):
        training.generation(number)
        training.phase("train")
        training.phase("validation")


def recorded(folder: Path) -> dict[str, tuple[list[int], str]]:
    """Return run -> (its generations with an end, how it ended)."""
    found = {}
    for path in folder.rglob("*.spool"):
        rows = [s for batch in read_batches(path) for s in batch.snapshots]
        ends = [s.generation for s in rows if s.kind == "generation_end"]
        end = read_end(path) or {}
        found[read_header(path)[0].id] = [g for g in ends if g is not None], str(end.get("state"))
    return found


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"projct": "x"}, TypeError, "Callback() got an unexpected keyword argument 'projct'"),
        ({"unit": "epoch"}, TypeError, "unexpected keyword argument 'unit'"),
        ({"mode": "onlin"}, leakline.BadArgument, "mode='onlin'"),
    ],
)
def test_a_wrong_argument_raises_when_the_callback_is_created(
    given: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as raised:
        checked("Callback", given)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "10"])
def test_steps_per_generation_must_be_an_integer(steps: object) -> None:
    with pytest.raises(leakline.BadArgument, match="steps="):
        checked_steps(steps)


def test_classes_to_watch_are_stored_by_name() -> None:
    assert checked("Callback", {"watch": [Training]})["watch"] == (
        "leakline.integrations.training.Training",
    )


def test_a_missing_framework_is_one_line_with_the_install_command() -> None:
    no_keras = ModuleNotFoundError("No module named 'keras'", name="keras")
    said = missing("keras", "keras", "keras", no_keras)
    assert isinstance(said, MissingPackage)
    assert isinstance(said, ImportError)
    assert str(said) == (
        "leakline.integrations.keras needs keras; install it with: pip install 'leakline[keras]'"
    )
    broken = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    assert missing("keras", "keras", "keras", broken) is broken


@pytest.mark.parametrize(
    ("module", "package"),
    [*((name, name) for name in ("lightning", "transformers", "keras", "gymnasium")), ("sb3", "stable_baselines3")],
)  # fmt: skip
def test_each_module_names_an_existing_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"leakline.integrations.{module}", raising=False)
    with pytest.raises(MissingPackage) as raised:
        import_module(f"leakline.integrations.{module}")
    assert raised.value.package == package
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"][module]
    assert f"pip install 'leakline[{module}]'" in str(raised.value)
    assert any(each.replace("-", "_").startswith(package) for each in extra)


def test_a_training_starts_a_run_and_finishes_it(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training("one", options)
    # A resumed training keeps its generation numbers.
    fit(training, 3, first=7)
    assert leakline.current() is training.run
    training.end()
    training.end()
    assert not leakline.current().id
    assert list(recorded(tmp_path).values()) == [([7, 8, 9], "finished")]


@pytest.mark.parametrize(
    ("error", "state"), [(ZeroDivisionError(), "failed"), (KeyboardInterrupt(), "terminated")]
)
def test_a_raising_training_fails_and_an_interrupted_one_is_terminated(
    options: dict[str, Any], tmp_path: Path, error: BaseException, state: str
) -> None:
    training = Training("one", options)
    fit(training, 2)
    training.end(error)
    assert list(recorded(tmp_path).values()) == [([0, 1], state)]


def test_a_run_of_the_program_is_used_and_never_finished(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = leakline.init(mode="offline", quiet=True, directory=tmp_path)
    for training in (Training("one", options), Training("one", options)):
        fit(training, 3)
        assert training.run is run
        training.end()
        assert leakline.current() is run
    run.finish()
    # Each training counts from 0, and the second continues the axis.
    assert list(recorded(tmp_path).values()) == [([0, 1, 2, 3, 4, 5], "finished")]


def test_callbacks_do_not_count_when_the_program_counts(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = leakline.init(mode="offline", quiet=True, directory=tmp_path)
    for generation in range(10, 12):
        run.generation(generation)
        training = Training("one", options)
        fit(training, 3)
        training.end()
    run.finish()
    assert list(recorded(tmp_path).values()) == [([10, 11], "finished")]


def test_a_nested_training_records_only_phases(options: dict[str, Any], tmp_path: Path) -> None:
    outer, inner = Training("one", options), Training("two", options)
    fit(outer, 2)
    fit(inner, 5)
    inner.end()
    assert leakline.current() is outer.run
    outer.end()
    assert list(recorded(tmp_path).values()) == [([0, 1], "finished")]


def test_a_training_without_an_end_fails_when_the_next_begins(
    options: dict[str, Any], tmp_path: Path
) -> None:
    left, next_one = Training("one", options), Training("one", options)
    fit(left, 2)
    fit(next_one, 3)
    next_one.end()
    left.end()
    assert sorted(recorded(tmp_path).values()) == [([0, 1], "failed"), ([0, 1, 2], "finished")]


def test_a_callback_that_is_reused_continues_its_run(
    options: dict[str, Any], tmp_path: Path
) -> None:
    training = Training("one", options)
    fit(training, 2)
    fit(training, 2)
    training.end()
    assert list(recorded(tmp_path).values()) == [([0, 1, 2, 3], "finished")]


def test_a_training_on_another_thread_does_not_end_the_first(
    options: dict[str, Any], tmp_path: Path
) -> None:
    here, there = Training("one", options), Training("one", options)
    fit(here, 2)
    thread = threading.Thread(target=lambda: (fit(there, 2), there.end()))
    thread.start()
    thread.join()
    here.end()
    assert list(recorded(tmp_path).values()) == [([0, 1], "finished")]


def test_callbacks_start_no_run_when_the_program_disabled_its_own(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = leakline.init(mode="disabled")
    training = Training("one", options)
    fit(training, 2)
    training.end()
    assert not recorded(tmp_path)
    # This holds until the program finishes its own run.
    run.finish()
    fit(training, 2)
    training.end()
    assert len(recorded(tmp_path)) == 1


def test_steps_are_counted_to_generations(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training("one", options)
    training.begin("generation")
    for step in range(9):
        training.count(step // 3)
        training.phase("train")
    training.end()
    assert list(recorded(tmp_path).values()) == [([0, 1, 2], "finished")]


def test_exceptions_of_user_functions_reach_the_program(options: dict[str, Any]) -> None:
    class Stop(Exception):
        pass

    def stop(verdict: object) -> None:
        raise Stop

    training = Training("one", options)
    fit(training, 1)
    training.run.on("learning", stop)
    training.run._chain.verdicts.due = lambda: [(stop, None)]  # type: ignore[method-assign]
    with pytest.raises(Stop):
        training.generation(1)
    training.run._chain.verdicts.due = list  # type: ignore[method-assign]
    training.end()


def test_the_rank_comes_from_the_framework_if_not_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LEAKLINE_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    said = Place(1, 2, "ranks-7").environment()
    assert (said["RANK"], said["WORLD_SIZE"], said["LEAKLINE_RUN_ID"]) == ("1", "2", "ranks-7")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch")
    said = Place(1, 2, "ranks-7").environment()
    assert (said["RANK"], "LEAKLINE_RUN_ID" in said) == ("5", False)
    monkeypatch.delenv("RANK")
    assert "RANK" not in Place().environment()


class Listed:
    """Calls its callbacks as frameworks do."""

    def __init__(self, callbacks: list[Callable[[], None]]) -> None:
        self.callbacks = callbacks

    def call(self) -> None:
        for callback in self.callbacks:
            callback()


def test_a_callback_moves_to_the_front_of_the_list_that_calls_it() -> None:
    order: list[str] = []
    given: list[Callable[[], None]] = []

    def last() -> None:
        order.append("last")

    def ours() -> None:
        among = calling(Listed)
        assert among is not None
        bracket(among, ours, last)
        order.append("ours")

    given += [lambda: order.append("theirs"), ours, lambda: order.append("theirs too")]
    listed = Listed(given)
    listed.call()
    listed.call()
    assert order == ["theirs", "ours", "theirs too", "ours", "theirs", "theirs too", "last"]
    # The program's list is unchanged.
    assert len(given) == 3
    assert calling(Listed) is None


def test_only_the_last_callback_of_an_earlier_training_is_removed(
    options: dict[str, Any],
) -> None:
    class Last:
        def __init__(self, training: Training) -> None:
            self._training = training

    class Listed:
        callbacks: list[Any]

    ours, other = Training("one", options), Last(Training("one", options))
    first, theirs, added = object(), object(), object()
    listed = Listed()
    listed.callbacks = [theirs, first, other]
    bracket(listed, first, Last(ours))
    newest = Last(ours)
    listed.callbacks = [*listed.callbacks, added]
    bracket(listed, first, newest)
    assert listed.callbacks == [first, theirs, other, added, newest]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copied_callback_has_not_started(
    options: dict[str, Any], tmp_path: Path, copied: Callable[[Training], Training]
) -> None:
    training = Training("one", options)
    assert not copied(training).is_on
    fit(training, 2)
    twin = copied(training)
    assert not twin.is_on
    twin.end()
    assert training.is_on
    fit(training, 1)
    training.end()
    fit(twin, 4)
    twin.end()
    assert sorted(recorded(tmp_path).values()) == [
        ([0, 1, 2], "finished"), ([0, 1, 2, 3], "finished")
    ]  # fmt: skip


# -- callbacks that are added to trainings automatically


KERAS = {
    "keras/__init__.py": """
        __version__ = "3.0"
        from keras import callbacks

        def fit():
            callbacks_of_fit = callbacks.CallbackList()
            callbacks_of_fit.on_train_begin()
            for epoch in range(3):
                for each in callbacks_of_fit.callbacks:
                    each.on_epoch_begin(epoch)
            for each in callbacks_of_fit.callbacks:
                each.on_train_end()
    """,
    "keras/data.txt": "data",
    "keras/callbacks.py": """
        from keras.src.callbacks.callback_list import Callback, CallbackList
    """,
    "keras/src/__init__.py": "",
    "keras/src/callbacks/__init__.py": "",
    "keras/src/callbacks/callback_list.py": """
        class Callback:
            params = model = None
            def on_train_begin(self, logs=None): ...
            def on_epoch_begin(self, epoch, logs=None): ...
            def on_train_end(self, logs=None): ...
            def set_params(self, params):
                self.params = params
            def set_model(self, model):
                self.model = model

        class CallbackList(Callback):
            def __init__(self, callbacks=()):
                self.callbacks = list(callbacks)
                self.params = {"epochs": 3}
            def on_train_begin(self):
                for each in self.callbacks:
                    each.on_train_begin()
    """,
}


Runs = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def program(tmp_path: Path) -> Runs:
    """Return a function that runs a program with a small package named keras."""
    for name, text in KERAS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run(text: str, **environ: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        return subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "LEAKLINE_MODE": "offline", "LEAKLINE_DIR": str(tmp_path), **environ},
            timeout=60,
        )  # fmt: skip

    return run


def test_a_framework_is_extended_without_traces_in_the_import_system(
    program: Runs,
) -> None:
    said = program(
        """
        import importlib.metadata, importlib.resources, importlib.util, pkgutil, sys
        import leakline

        class AsksAll:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if self.busy or not name.startswith("keras"):
                    return None
                self.busy = True
                try:
                    return importlib.util.find_spec(name)
                finally:
                    self.busy = False

        leakline.auto()
        leakline.auto()
        sys.meta_path.insert(0, AsksAll())
        assert importlib.util.find_spec("keras").loader.get_filename("keras").endswith("__init__.py")
        import keras
        assert {type(each).__name__ for each in (keras.__loader__, keras.__spec__.loader)} == {"SourceFileLoader"}
        assert importlib.resources.files("keras").joinpath("data.txt").read_text() == "data"
        assert pkgutil.get_data("keras", "data.txt") == b"data"
        importlib.metadata.version("pytest")
        begin = keras.callbacks.CallbackList.on_train_begin
        assert importlib.reload(keras) is keras
        assert keras.callbacks.CallbackList.on_train_begin is begin
        keras.fit()
        print(leakline.current().id)
        """
    )
    assert said.returncode == 0, said.stderr
    assert "failed" not in said.stderr
    assert said.stdout.strip()


@pytest.mark.parametrize(
    "first", ["import keras, leakline\nleakline.auto()", "import leakline, keras"]
)
def test_trainings_of_one_program_are_one_run(program: Runs, tmp_path: Path, first: str) -> None:
    said = program(
        f"{first}\nfor _ in range(2):\n    keras.fit()\n",
        LEAKLINE_AUTO="" if "auto" in first else "1",
    )
    assert said.returncode == 0, said.stderr
    assert list(recorded(tmp_path).values()) == [(list(range(6)), "finished")]


def test_an_unsupported_version_is_reported_once(program: Runs, tmp_path: Path) -> None:
    (tmp_path / "keras" / "callbacks.py").write_text("")
    said = program(
        "import leakline\nleakline.auto()\nimport keras, importlib\nimportlib.reload(keras)\n"
    )
    assert said.returncode == 0
    (line,) = said.stderr.splitlines()
    assert line.startswith("leakline: keras 3.0 is not supported, so")


def test_an_error_of_the_automatic_callback_does_not_reach_the_program(
    program: Runs,
) -> None:
    said = program(
        "import leakline, keras\nkeras.fit()\nprint('trained')\n",
        LEAKLINE_AUTO="1", LEAKLINE_MAX_OVERHEAD="much",
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (0, "trained\n")
    (line,) = said.stderr.splitlines()
    assert "LEAKLINE_MAX_OVERHEAD" in line


def test_a_program_with_its_own_run_gets_callbacks_only_if_it_asks(
    program: Runs, tmp_path: Path
) -> None:
    text = """
        import leakline, keras, sys
        from leakline.integrations import automatic
        automatic.install()
        run = leakline.init("own")
        keras.fit()
        leakline.auto()
        keras.fit()
        run.finish()
    """
    assert program(text).returncode == 0
    assert list(recorded(tmp_path).values()) == [(list(range(3)), "finished")]
