"""Generations and phases that are found in training loops of plain PyTorch."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.client.recording import Clock, events, generation_ends, phases, recorded
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import leakline
from leakline.integrations import plain_loop, plain_torch, savers_and_loggers
from leakline.integrations.plain_loop import Loop
from leakline.integrations.training import Training

ROWS, BATCH = 12, 4
STEPS = ROWS // BATCH


@pytest.fixture
def watched(
    monkeypatch: pytest.MonkeyPatch, offline: leakline.Run, loop: Loop
) -> Iterator[leakline.Run]:
    """Watch PyTorch in this process until the test ends. Memory at phase ends is always recorded."""
    for owner, name in (
        (DataLoader, "__iter__"), (_BaseDataLoaderIter, "__init__"), (_BaseDataLoaderIter, "__next__"),
        (torch.autograd, "backward"), (nn.Module, "eval"), (torch, "save"), (torch.serialization, "save"),
        (optim.Optimizer, "__init__"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    optimizers = sys.modules["torch.optim.optimizer"]
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    before = [copy.copy(each) for each in hooks]
    plain_torch.watch(loop)
    yield offline
    for each, old in zip(hooks, before, strict=True):
        each.clear()
        each.update(old)


@pytest.fixture
def train(clock: Clock) -> Callable[..., None]:
    """Return a function that trains for one pass over a loader, with ``seconds`` per step."""
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), 0.1)

    def one_pass(
        loader: Any, seconds: float = 0.0, every: int = 1, stop: int | None = None
    ) -> None:
        for number, (batch,) in enumerate(loader):
            clock.now += seconds
            model(batch).sum().backward()
            if number % every == every - 1:
                optimizer.step()
            if number == stop:
                break

    return one_pass


def loader() -> Any:
    return DataLoader(TensorDataset(torch.ones(ROWS, 2)), BATCH)


def ended(run: leakline.Run) -> list[int | None]:
    run.finish()
    return [s.generation for s in generation_ends()]


def test_each_pass_over_a_loader_is_a_generation(watched: Any, train: Any) -> None:
    each = loader()
    for _ in range(4):
        train(each)
    assert ended(watched) == [0, 1, 2, 3]
    (note,) = events("note")
    assert note.data["text"].startswith("a generation is a pass over a data loader")


def with_a_first_look(train: Any, epoch: int, each: Any) -> None:
    if epoch == 0:
        next(iter(each))
    train(each)


def with_a_new_loader(train: Any, epoch: int, each: Any) -> None:
    train(loader())


def with_a_break(train: Any, epoch: int, each: Any) -> None:
    train(each, stop=1)


def with_a_kept_iterator(train: Any, epoch: int, each: Any) -> None:
    KEPT[:] = [iter(each)]
    train(KEPT[0], stop=1)


def with_two_loaders_at_once(train: Any, epoch: int, each: Any) -> None:
    train([first] for [first], _ in zip(each, SECOND, strict=True))


def with_accumulated_gradients(train: Any, epoch: int, each: Any) -> None:
    train(each, every=STEPS)


def with_an_evaluation_inside(train: Any, epoch: int, each: Any) -> None:
    train(each, stop=0)
    evaluated_without_gradients(SECOND)


KEPT: list[Any] = []
SECOND: Any = DataLoader(TensorDataset(torch.ones(ROWS, 2)), BATCH)


@pytest.mark.parametrize(
    "epoch",
    [
        with_a_first_look, with_a_new_loader, with_a_break, with_a_kept_iterator,
        with_two_loaders_at_once, with_accumulated_gradients, with_an_evaluation_inside,
    ],
)  # fmt: skip
def test_an_epoch_is_one_generation(
    watched: Any, train: Any, epoch: Callable[[Any, int, Any], None]
) -> None:
    each = loader()
    for number in range(4):
        epoch(train, number, each)
    assert ended(watched) == [0, 1, 2, 3]
    KEPT.clear()


def test_only_the_thread_that_trains_first_is_recorded(watched: Any, train: Any) -> None:
    each = loader()
    train(each)
    other = threading.Thread(target=lambda: [train(loader()) for _ in range(3)])
    other.start()
    other.join()
    train(each)
    assert ended(watched) == [0, 1]


def test_the_phases_of_the_program_win(watched: Any, train: Any) -> None:
    with watched.phase("mine"):
        train(loader())
    assert ended(watched) == [0]
    assert phases() == ["mine"]


def test_no_tensor_of_the_program_is_kept_alive(watched: Any) -> None:
    dead = []
    for (batch,) in loader():
        weight = batch.clone().requires_grad_()
        weight.sum().backward()
        dead.append(weakref.ref(weight))
        dead.append(weakref.ref(batch))
    del batch, weight
    assert [each() for each in dead] == [None] * len(dead)
    watched.finish()


def evaluated_without_gradients(each: Any) -> None:
    with torch.no_grad():
        list(each)


def evaluated_in_eval_mode(each: Any) -> None:
    nn.Linear(1, 1).eval()
    for _ in each:
        with torch.no_grad():
            torch.ones(1)


@pytest.mark.parametrize("evaluate", [evaluated_without_gradients, evaluated_in_eval_mode])
def test_an_evaluation_is_a_phase_of_the_generation(
    watched: Any, train: Any, evaluate: Callable[[Any], None]
) -> None:
    training, test = loader(), loader()
    for _ in range(3):
        train(training)
        evaluate(test)
    assert ended(watched) == [0, 1, 2]
    assert set(phases()) == {"train", "evaluation"}


def test_an_evaluation_without_a_loader_is_a_phase(watched: Any, train: Any) -> None:
    batches = [[torch.ones(1, 2)]] * 2
    train(batches)
    nn.Linear(1, 1).eval()
    torch.save({}, io.BytesIO())
    watched.finish()
    assert phases() == ["train", "evaluation", "checkpoint"]


def test_slow_steps_without_a_loader_leave_nothing_outside_phases(watched: Any, train: Any) -> None:
    train([[torch.ones(1, 2)]] * 40, seconds=0.6)
    watched.finish()
    assert phases()[-6:] == ["after_step", "backward", "optimizer"] * 2


def test_saving_is_a_phase(watched: Any, train: Any, tmp_path: Any) -> None:
    train(loader())
    torch.save({"weight": torch.ones(1)}, tmp_path / "model.pt")
    assert ended(watched) == [0]
    assert phases()[-1] == "checkpoint"


class OtherLoader(DataLoader):
    """A loader that makes its iterators itself, as the one of torchdata."""

    def __iter__(self) -> Any:
        return self._get_iterator()


def test_a_loader_of_another_package_has_generations(watched: Any, train: Any) -> None:
    each = OtherLoader(TensorDataset(torch.ones(ROWS, 2)), BATCH)
    for _ in range(3):
        train(each)
    assert ended(watched) == [0, 1, 2]


def test_a_thread_that_only_reads_is_not_the_one_that_trains(watched: Any, train: Any) -> None:
    reader = threading.Thread(target=lambda: list(loader()))
    reader.start()
    reader.join()
    each = loader()
    for _ in range(3):
        train(each)
    assert ended(watched) == [0, 1, 2]


def test_generations_of_the_program_win(watched: Any, train: Any) -> None:
    each = loader()
    for number in range(1, 4):
        watched.epoch(number)
        train(each)
    assert ended(watched) == [1, 2, 3]
    assert set(phases()) == {"train"}


def test_a_long_pass_is_also_divided_later(watched: Any, train: Any) -> None:
    each = loader()
    train(each)
    train(each)
    train(([torch.ones(1, 2)] for _ in range(30)), seconds=5.0)
    assert len(ended(watched)) > 10


def test_a_pass_that_was_left_ends_with_the_next_loader(watched: Any, train: Any) -> None:
    KEPT[:] = [iter(loader())]
    train(KEPT[0], stop=1)
    each = loader()
    for _ in range(4):
        train(each)
    assert len(ended(watched)) >= 4
    KEPT.clear()


def test_an_exception_of_a_callback_reaches_the_program(watched: Any, train: Any) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    each = loader()
    train(each)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setattr(type(watched), "_call_back", stop)
        train(each)
    watched.finish()


def test_a_phase_of_the_program_ends_the_found_one(watched: Any, train: Any) -> None:
    each = loader()
    train(each, stop=1)
    with watched.phase("log"):
        pass
    watched.finish()
    assert phases() == ["train", "log"]


def test_nothing_is_found_before_the_training_that_a_framework_has_announced(
    watched: Any, train: Any
) -> None:
    """Lightning trains for a while to find a learning rate."""
    training = Training("lightning", {})
    training.expect()
    train(loader())
    training.end()
    train(loader())
    assert ended(watched) == [0]


def test_replaced_functions_can_be_pickled(watched: Any) -> None:
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_saving_by_another_package_is_a_phase(
    watched: Any, loop: Loop, train: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed.checkpoint as checkpoints

    for name in ("save", "save_state_dict"):
        monkeypatch.setattr(checkpoints, name, getattr(checkpoints, name))
    savers_and_loggers.watch("torch.distributed.checkpoint", loop)
    train(loader())
    checkpoints.save({"weight": torch.ones(1)}, checkpoint_id=tmp_path / "saved")
    assert ended(watched) == [0]
    assert phases()[-1] == "checkpoint"


class SummaryWriter:
    """Stands for the class of TensorBoard, one method of which calls another one."""

    def add_scalar(self, name: str, value: float) -> tuple[str, float]:
        return name, value

    def add_scalars(self, values: dict[str, float]) -> list[tuple[str, float]]:
        return [self.add_scalar(*each) for each in values.items()]


@pytest.fixture
def writer(watched: Any, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> SummaryWriter:
    """Return a writer of a module that is imported while PyTorch is watched."""
    module = types.ModuleType("tensorboardX.writer")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("add_scalar", "add_scalars"):
        monkeypatch.setattr(SummaryWriter, name, getattr(SummaryWriter, name))
    savers_and_loggers.watch(module.__name__, loop)
    return SummaryWriter()


def test_logging_after_a_pass_and_in_slow_steps_is_a_phase(
    watched: Any, train: Any, writer: SummaryWriter
) -> None:
    each = loader()
    train(each)
    assert writer.add_scalars({"loss": 1.0, "accuracy": 0.5}) == [("loss", 1.0), ("accuracy", 0.5)]
    for _ in range(12):
        train(each, seconds=0.6)
    train(each, seconds=0.6, stop=1)
    assert writer.add_scalar("loss", 1.0) == ("loss", 1.0)
    watched.finish()
    assert phases()[:2] == ["train", "logging"]
    assert phases()[-2:] == ["after_step", "logging"]


def test_logging_in_short_steps_and_evaluations_does_not_end_the_phase(
    watched: Any, train: Any, writer: SummaryWriter
) -> None:
    train([[torch.ones(1, 2)]] * 2)
    writer.add_scalar("loss", 1.0)
    with watched.phase("own"):
        writer.add_scalar("loss", 1.0)
    nn.Linear(1, 1).eval()
    writer.add_scalar("loss", 1.0)
    with watched.phase("own"):
        pass
    watched.finish()
    assert phases() == ["train", "own", "evaluation", "own"]


def log_metric(name: str, value: float) -> tuple[str, float]:
    return name, value


def test_a_function_that_logs_can_be_pickled_from_its_package(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow may be imported before torch."""
    package, module = types.ModuleType("mlflow"), types.ModuleType("mlflow.tracking.fluent")
    monkeypatch.setattr(log_metric, "__module__", module.__name__)
    for each in (package, module):
        each.log_metric = log_metric  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, each.__name__, each)
    savers_and_loggers.watch(module.__name__, loop)
    wrapped = package.log_metric
    assert wrapped is not log_metric
    assert pickle.loads(pickle.dumps(wrapped)) is wrapped
    assert wrapped("loss", 1.0) == ("loss", 1.0)


def test_slow_steps_have_phases_of_their_own(watched: Any, train: Any) -> None:
    each = loader()
    for _ in range(12):
        train(each, seconds=0.6)
    watched.finish()
    assert {"data", "forward", "backward", "optimizer", "after_step"} < set(phases())


def one_ahead(batches: Any) -> Iterator[Any]:
    """Read each batch before the program gets the one before it, as Accelerate does."""
    reading = iter(batches)
    ready = next(reading)
    for batch in reading:
        yield ready
        ready = batch
    yield ready


PARTS = plain_loop.PARTS


@pytest.mark.parametrize("read", [iter, one_ahead])
def test_a_pass_of_two_seconds_is_not_divided(
    watched: Any, train: Any, read: Callable[[Any], Iterator[Any]]
) -> None:
    each = DataLoader(TensorDataset(torch.ones(20, 2)), 1)
    for _ in range(3):
        train(read(each), seconds=0.11)
    assert ended(watched) == [0, 1, 2]


@pytest.mark.parametrize("read", [iter, one_ahead])
@pytest.mark.parametrize("seconds", [0.21, 0.9])
def test_a_pass_of_a_few_seconds_is_divided_into_equal_parts(
    watched: Any, train: Any, read: Callable[[Any], Iterator[Any]], seconds: float
) -> None:
    each = DataLoader(TensorDataset(torch.ones(20, 2)), 1)
    for _ in range(3):
        train(read(each), seconds=seconds)
    generations = ended(watched)
    # The first pass is divided once its first steps have been timed.
    assert 2 * PARTS + 2 <= len(generations) <= 3 * PARTS
    assert generations == list(range(len(generations)))
    (note,) = events("note")
    assert note.data["text"].startswith(f"a generation is 1/{PARTS} of a pass over a data loader")


def test_many_passes_are_measured_as_a_whole_with_the_number_of_their_last_part(
    watched: Any, train: Any
) -> None:
    each = DataLoader(TensorDataset(torch.ones(20, 2)), 1)
    for _ in range(plain_loop.FEW_EPOCHS + 3):
        train(each, seconds=0.21)
    generations = ended(watched)
    divided, whole = generations[:-3], generations[-3:]
    assert divided == list(range(len(divided)))
    assert whole == [divided[-1] + PARTS * number for number in (1, 2, 3)]


def test_a_pass_that_ends_early_counts_for_the_parts_that_it_has(watched: Any, train: Any) -> None:
    each = DataLoader(TensorDataset(torch.ones(200, 2)), 1)
    for _ in range(plain_loop.FEW_EPOCHS + 4):
        train(each, seconds=0.07, stop=39)
    generations = ended(watched)
    assert generations == list(range(len(generations)))


def test_accumulated_gradients_do_not_make_a_pass_longer(watched: Any, train: Any) -> None:
    each = DataLoader(TensorDataset(torch.ones(40, 2)), 1)
    for _ in range(3):
        train(each, seconds=0.4, every=2)
    assert len(ended(watched)) > 2 * PARTS
    (note,) = events("note")
    assert "of a pass" in note.data["text"]


def test_an_evaluation_belongs_to_the_last_part_of_its_pass(watched: Any, train: Any) -> None:
    each = DataLoader(TensorDataset(torch.ones(20, 2)), 1)
    for _ in range(3):
        train(each, seconds=0.21)
        evaluated_in_eval_mode(SECOND)
    generations = ended(watched)
    last = generations[-1]
    found = [s.generation for s in recorded() if s.kind == "phase_end" and s.phase == "evaluation"]
    assert sorted(set(found)) == [last - 2 * PARTS, last - PARTS, last]


def test_steps_without_a_loader_are_counted(watched: Any, train: Any) -> None:
    train(([torch.ones(1, 2)] for _ in range(20)), seconds=0.7)
    assert ended(watched) == list(range(16))


def without_an_optimizer(batches: Any, clock: Clock, seconds: float = 0.0) -> None:
    weight = nn.Parameter(torch.ones(1))
    for (batch,) in batches:
        clock.now += seconds
        (weight * batch).sum().backward()


def test_a_pass_without_an_optimizer_is_a_generation(watched: Any, clock: Clock) -> None:
    each = loader()
    for _ in range(4):
        without_an_optimizer(each, clock)
    assert ended(watched) == [0, 1, 2, 3]


def test_backward_passes_are_counted_without_an_optimizer(watched: Any, clock: Clock) -> None:
    without_an_optimizer([[torch.ones(1)]] * 20, clock, seconds=0.7)
    assert ended(watched) == list(range(16))
    assert events("note")[0].data["text"].startswith("a generation is a backward pass,")


def test_backward_passes_before_the_first_step_are_not_counted(watched: Any, train: Any) -> None:
    train(([torch.ones(1, 2)] for _ in range(20)), seconds=0.7, every=20)
    assert ended(watched) == [0]


@pytest.mark.parametrize(("seconds", "each"), [(3.0, 1), (0.4, 10), (0.03, 100)])
def test_a_long_pass_is_divided_by_optimizer_steps(
    watched: Any, clock: Clock, seconds: float, each: int
) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([weight], 0.1)
    endless = DataLoader(TensorDataset(torch.ones(100_000, 1)), 1)
    for number, (batch,) in enumerate(endless):
        clock.now += seconds
        (weight * batch).sum().backward()
        optimizer.step()
        if number == 4 * each + plain_loop.UNTIMED_STEPS + 70:
            break
    generations = ended(watched)
    assert generations == list(range(len(generations))) and len(generations) >= 3
    assert f"{each:,} optimizer step" in events("note")[0].data["text"] or each == 1


def passes_a_minute(run: Any, clock: Clock, minutes: int = 1) -> None:
    """Let time pass as the thread of an observed program sees it."""
    for _ in range(minutes):
        clock.now += 60.0
        interval = threading.Thread(target=run._loop.end_interval, args=("after a minute",))
        interval.start()
        interval.join()


@pytest.mark.parametrize("has_loader", [True, False])
def test_minutes_are_generations_after_training(
    monkeypatch: pytest.MonkeyPatch, watched: Any, train: Any, clock: Clock, has_loader: bool
) -> None:
    batches = loader() if has_loader else [[torch.ones(1, 2)]] * STEPS
    train(batches)
    scans = watched._loop.sampler._looks.plan
    passes_a_minute(watched, clock, 29)
    assert watched._loop.generation == 0 and not scans.only_in_background
    charged: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            watched._loop, "_charge_own_work", lambda: charged.append(watched._loop.generation)
        )
        passes_a_minute(watched, clock, 3)
    assert watched._loop.generation == 3 and scans.only_in_background
    assert watched._loop.phase is None
    # What the program allocates while we measure is not ours; only the phase that was open is measured as before.
    assert charged == ([] if has_loader else [1])
    evaluated_without_gradients(SECOND)
    passes_a_minute(watched, clock)
    assert watched._loop.generation == 4
    train(batches)
    passes_a_minute(watched, clock)
    # Without a loader, a generation of several steps goes on.
    assert watched._loop.generation == (5 if has_loader else 4)
    assert scans.only_in_background is not has_loader
    assert ended(watched) == list(range(6 if has_loader else 5))
    assert ["30 minutes" in note.data["text"] for note in events("note")].count(True) == 1


def test_a_long_evaluation_is_not_the_end_of_training(
    watched: Any, train: Any, clock: Clock
) -> None:
    train(loader())
    batches = iter(SECOND)
    with torch.no_grad():
        next(batches)
        passes_a_minute(watched, clock, 60)
    assert watched._loop.generation == 0


def test_steps_without_backward_passes_are_training(watched: Any, train: Any, clock: Clock) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([weight], 0.1)
    weight.sum().backward()
    for _ in range(60):
        optimizer.step()
        passes_a_minute(watched, clock)
    assert not [note for note in events("note") if "30 minutes" in note.data["text"]]


def test_a_pause_shorter_than_the_training_is_not_its_end(
    watched: Any, train: Any, clock: Clock
) -> None:
    train(loader(), seconds=3_600.0)
    before = watched._loop.generation
    passes_a_minute(watched, clock, 110)
    assert watched._loop.generation == before
    passes_a_minute(watched, clock, 20)
    assert watched._loop.generation > before


def test_an_own_generation_is_never_divided(watched: Any, train: Any, clock: Clock) -> None:
    watched.generation(0)
    train(loader())
    passes_a_minute(watched, clock, 40)
    assert ended(watched) == [0]
