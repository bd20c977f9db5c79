"""Trainings with and without torch, NumPy and Matplotlib: what the entire client records and prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.client.recording import MIB, generation_ends, recorded

import leakline
from leakline import Run
from leakline.analysis import check_counts, examine, history_from_batches
from leakline.analysis.findings.verdict_summary import finding_sentence
from leakline.analysis.results import Finding
from leakline.analysis.run_history import RunHistory
from leakline.probes.heap.marginal_size import is_on_device
from leakline.probes.tracked_containers import TrackedContainer
from leakline.sampling.overhead_budget import Governor
from leakline.sampling.sampler import Sampler
from leakline.settings import resolve
from leakline.transport.spool_format import read_batches, read_header

pytestmark = pytest.mark.long


def generation_samples() -> list[Mapping[str, Any]]:
    return [s.samples for s in generation_ends()]


def history_of(directory: Path) -> RunHistory:
    (path,) = directory.rglob("*.spool")
    return history_from_batches(read_header(path)[0], read_batches(path))


def run_program(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a new process that has not loaded anything yet."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **environment},
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def pyplot() -> Iterator[Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    mpl.rcParams["figure.max_open_warning"] = 0
    yield pyplot
    pyplot.close("all")


def test_thirty_unclosed_figures_are_flagged(
    offline: Run, pyplot: Any, spool_directory: Path
) -> None:
    for episode in range(30):
        offline.episode(episode)
        with offline.phase("plot"):
            pyplot.figure().image = np.ones(4 * MIB, np.uint8)
    offline.finish()
    assert generation_samples()[-1]["figures.open"] == 30
    finding = examine(history_of(spool_directory)).findings[0]
    assert finding.status in ("suspected", "confirmed")
    assert finding.phase == "plot"
    assert any("Figure" in suspect.name for suspect in finding.suspects)
    assert any("plt.close(figure)" in line for line in finding.advice)


def test_closing_the_wrong_figure_shows_as_growth(offline: Run, pyplot: Any) -> None:
    for episode in range(5):
        offline.episode(episode)
        saved = pyplot.figure()
        pyplot.figure()
        pyplot.close()
        if episode == 4:
            pyplot.close(saved)
    offline.finish()
    assert [s["figures.open"] for s in generation_samples()] == [1, 2, 3, 4, 4]


def test_device_and_host_bytes_of_a_buffer_are_counted_separately() -> None:
    buffer = [(torch.ones(1024), torch.ones(256)) for _ in range(50)]
    host = TrackedContainer("replay", buffer).read()
    assert "tracked.replay.device_bytes" not in host
    # The test machine may have no device, so tensors of this shape are treated as device tensors.
    both = TrackedContainer("replay", buffer, on_device=lambda t: tuple(t.shape) == (256,)).read()
    assert both["tracked.replay.device_bytes"] == 50 * 256 * 4
    assert both["tracked.replay.bytes"] == host["tracked.replay.bytes"] > 50 * (1024 + 256) * 4
    assert not any(is_on_device(torch.ones(4, device=device)) for device in ("cpu", "meta"))
    assert is_on_device(SimpleNamespace(is_cpu=False, is_meta=False))


def test_background_readings_contain_gpu_memory_and_ram() -> None:
    sampler = Sampler(Governor(1.0, 1_000.0))
    sampler._probes["cuda"].read = lambda: {"cuda.0.allocated_bytes": 5, "cuda.0.reserved_bytes": 7}
    read = sampler.sample()
    assert (read["cuda.0.allocated_bytes"], read["cuda.0.reserved_bytes"]) == (5, 7)
    assert read["process.rss_bytes"] > 0


class TradingEnvironment:
    pass


def test_a_line_is_printed_every_n_generations(capsys: pytest.CaptureFixture[str]) -> None:
    run = leakline.init(mode="offline", watch=[TradingEnvironment], log_every=5)
    kept = [TradingEnvironment() for _ in range(2)]
    for generation in range(11):
        run.generation(generation)
    run.finish()
    said = [line for line in capsys.readouterr().err.splitlines() if ": end: RSS " in line]
    assert [line.split(": end")[0] for line in said] == [
        "leakline: generation 4", "leakline: generation 9",
    ]  # fmt: skip
    endings = tuple(f"{unit}, TradingEnvironment {len(kept)}" for unit in ("MiB", "GiB"))
    parts = [line.split("; ") for line in said]
    assert all(measured.endswith(endings) for measured, *_ in parts)
    assert [re.findall(r"[+-][\d.,]+ [KM]?i?B since ([^,]+)", growth) for _, growth, *_ in parts] == [
        ["generation 3: end", "baseline"], ["generation 8: end", "baseline"],
    ]  # fmt: skip


GROWS = """
import threading, leakline
from leakline import analysis
run, kept, threads = leakline.init(mode="offline"), [], set()
examine = analysis.examine
def seen(*given):
    threads.add(threading.current_thread().name)
    return examine(*given)
analysis.examine = seen
for generation in range(24):
    with run.generation(generation):
        with run.phase("train"):
            kept.append(bytearray(b"1") * (20 << 20))
    run._chain.verdicts._verdict_thread.wait(60)
print(threading.current_thread().name in threads, len(threads))
"""


def test_each_generation_prints_growth_and_the_newest_verdict() -> None:
    done = run_program(GROWS, LEAKLINE_LOG_EVERY="1", LEAKLINE_MAX_OVERHEAD="1")
    lines = [line.split("; ", 2) for line in done.stderr.splitlines() if ": end: RSS " in line]
    assert len(lines) >= 20
    # Lines never compute a verdict, and one that does not exist yet is not printed as "ok".
    assert lines[0][2] == "no verdict yet"
    assert " since generation" not in lines[0][1]
    grown = [float(growth.split(" MiB since generation ")[0]) for _, growth, _ in lines[5:]]
    assert all(15 < size < 30 for size in grown), grown
    whole = re.search(r", \+([\d.]+) MiB since baseline$", lines[-1][1])
    assert 400 < float(whole[1]) < 600
    assert re.match(r"after \d+ generations (suspected|confirmed): .*train", lines[-1][2]), lines[
        -1
    ]
    # The verdict was computed, but not on the training thread.
    assert re.fullmatch(r"False [1-9]\d*\n", done.stdout)


@pytest.mark.parametrize("how", [{}, {"log_every": 5, "quiet": True}])
def test_quiet_runs_and_runs_without_the_setting_print_no_line(
    capsys: pytest.CaptureFixture[str], how: dict[str, Any]
) -> None:
    run = leakline.init(mode="offline", **how)
    for generation in range(11):
        run.generation(generation)
    run.finish()
    assert ": end: RSS" not in capsys.readouterr().err


def test_kept_losses_add_3072_graphs_and_detached_ones_none() -> None:
    """16 agents, 32 gradient steps and 6 accumulation steps, as the report of such a training counts them."""
    run = leakline.init(mode="offline", quiet=True)
    weight, losses, detached = torch.ones(1, requires_grad=True), list[Any](), list[Any]()
    for generation in range(3):
        run.generation(generation)
        with run.phase("train_population"):
            losses += [weight * 2 for _ in range(16 * 32 * 6)]
            detached += [(weight * 2).detach() for _ in range(40)]
        run.census()
        with run.phase("look"):
            pass
    run.finish()
    graphs = {
        s.generation: s.samples["tensors.graph_count"]
        for s in recorded()
        if s.generation is not None and "tensors.graph_count" in s.samples
    }
    assert [b - a for a, b in pairwise(graphs.values())] == [3072, 3072]


# The first optimizer and its first step make torch load hundreds of modules that refer to `torch.Tensor`. Each line:
# the count, and the tensors on the collector's own list at the end of the phase.
ADAM = """
import gc, json, sys, torch, leakline
torch.set_num_threads(1)
run = leakline.init(mode="offline", quiet=True)
run.expect(torch.Tensor, "baseline", after="train_population")
net = torch.nn.Linear(64, 64)
optimizer, kept = None, []
for generation in range(6):
    with run.generation(generation):
        before = len(sys.modules)
        with run.phase("train_population"):
            optimizer = optimizer or torch.optim.Adam(net.parameters())
            for _ in range(32):
                loss = net(torch.randn(8, 64)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if generation >= 3 and sys.argv[1] == "keep":
                    kept.append(loss.detach())
        loaded = len(sys.modules) - before
        print(json.dumps([loaded, sum(type(one) is torch.Tensor for one in gc.get_objects())]))
run.finish()
"""


@pytest.mark.parametrize(("what", "native"), [("keep", "1"), ("keep", "0"), ("let go", "1")])
def test_a_tensor_count_is_broken_unless_it_returns_to_its_baseline(
    what: str, native: str, spool_directory: Path
) -> None:
    done = run_program(ADAM, what, LEAKLINE_NATIVE=native)
    loaded, truth = zip(*map(json.loads, done.stdout.splitlines()), strict=True)
    assert loaded[0] > 100
    name = "type.torch.Tensor.count"
    told = {
        s.generation: s.samples[name]
        for s in recorded()
        if s.phase == "train_population" and name in s.samples
    }
    # Without the native module there is no cheap count, and doubtful counts wait for a census.
    assert told.items() <= dict(enumerate(truth)).items()
    assert len(told) == 6 or native == "0"
    assert {1, 2, 3, 4, 5} <= told.keys()
    (row,) = check_counts(history_of(spool_directory))
    assert (row.low, row.high) == (None, truth[1])
    assert row.measured is not None and row.measured.estimate == truth[-1]
    if what == "keep":
        assert truth[-1] - truth[2] == 3 * 32
        assert (row.state, row.deviations[0].generation) == ("broken", 3)
        assert row.violations == 3
    else:
        assert row.state == "holds"


BARE = """
import sys
blocked = {"psutil", "torch", "numpy", "matplotlib"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import leakline
from leakline.probes.gpu import nvml_library as driver
driver._LIBRARY = "libno-such-driver.so.1"
run, kept = leakline.init(mode="offline", log_every=1, watch=["Missing"]), []
for generation in range(3):
    with run.generation(generation), run.phase("keep"):
        kept.append(bytearray(5 << 20))
print(run.report())
run.finish()
assert not blocked & {name.partition(".")[0] for name in sys.modules}
"""


def test_a_run_without_optional_packages_names_what_is_missing() -> None:
    done = run_program(BARE)
    ends = generation_samples()
    assert len(ends) == 3
    assert all(s["process.rss_bytes"] > 0 for s in ends)
    # Unknown values are absent, never zero.
    assert not [n for s in ends for n in s if n.startswith(("cuda.", "gpu.", "mps."))]
    assert "MEMORY SNAPSHOT: generation 2" in done.stdout
    assert "VERDICT" in done.stdout
    assert "GPU memory was not measured" in done.stdout
    assert done.stderr.count("Missing not measured") == 3
    assert "Traceback" not in done.stderr


HISTORIES = """
import leakline
class Trainer:
    def __init__(self):
        self.fitness_history, self.generation_times = [], []
trainer = Trainer()
run = leakline.init(mode="offline", quiet=True)
for generation in range(13):
    with run.generation(generation):
        with run.phase("evaluate"):
            trainer.fitness_history += [1.0] * 16
        trainer.generation_times.append(2.0)
run.finish()
"""


def test_growing_histories_are_recorded_without_being_declared() -> None:
    run_program(HISTORIES)
    ends = generation_samples()
    assert all(s["generation.seconds"] > 0 for s in ends)
    for attribute, each in (("fitness_history", 16), ("generation_times", 1)):
        name = f"container.__main__.Trainer.{attribute}.length"
        told = {g: s[name] for g, s in enumerate(ends) if name in s}
        assert len(told) >= 3, ends[-1]
        assert told == {g: each * (g + 1) for g in told}


def test_large_objects_are_recorded_within_configured_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEAKLINE_LARGE_OBJECTS", "2")
    monkeypatch.setenv("LEAKLINE_LARGE_FROM", "40 MiB")
    kept = [np.ones(size * MIB, np.uint8) for size in (89, 67, 45, 20)]
    run = leakline.init(mode="offline", quiet=True)
    run.finish()
    told = [thing for s in recorded() for thing in s.large_objects]
    sizes = {thing.bytes for thing in told if thing.type == "numpy.ndarray"}
    assert {array.nbytes for array in kept[:2]} <= sizes
    assert not sizes & {array.nbytes for array in kept[2:]}
    assert all(thing.bytes >= 40 * MIB for thing in told)
    monkeypatch.undo()
    assert (resolve({}).large_objects, resolve({}).large_from_bytes) == (20, 10 * MIB)


# Each generation keeps 4 MiB that only the library counts; the healthy twin lets go of it.
KEEPS = {
    "sqlite": """
import sqlite3
database = sqlite3.connect(":memory:")
database.execute("create table steps (frame blob)")
def keep():
    database.executemany("insert into steps values (zeroblob(65536))", [()] * 64)
def let_go():
    database.execute("delete from steps")
""",
    "pyarrow": """
import pyarrow
first = steps = pyarrow.table({"frame": [b""]})
def keep():
    global steps
    steps = pyarrow.concat_tables([steps, pyarrow.table({"frame": [b"1" * (4 << 20)]})])
def let_go():
    global steps
    steps = first
""",
    "stacks": """
import ctypes, os, _thread
libc, (wait, end) = ctypes.CDLL(None), os.pipe()
libc.pthread_self.restype = ctypes.c_void_p
ready = _thread.allocate_lock()
ready.acquire()
def work():
    attributes, lowest, size = (ctypes.c_char * 256)(), ctypes.c_void_p(), ctypes.c_size_t()
    libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes)
    libc.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(size))
    ctypes.memset(lowest.value + (1 << 20), 1, 1 << 20)
    del attributes, lowest, size
    ready.release()
    os.read(wait, 1)
    ready.release()
def keep():
    for _ in range(4):
        _thread.start_new_thread(work, ())
        ready.acquire()
def let_go():
    for _ in range(4):
        os.write(end, b"1")
        ready.acquire()
""",
}
LOOP = """
import sys, leakline
leaking = sys.argv[1] == "leak"
run = leakline.init(mode="offline", quiet=True)
for generation in range(24):
    with run.generation(generation):
        with run.phase("rollout"):
            keep()
        with run.phase("evaluate"):
            if not leaking:
                let_go()
run.finish()
"""


def _native_finding(what: str, variant: str, directory: Path) -> Finding | None:
    run_program(KEEPS[what] + LOOP, variant)
    found = examine(history_of(directory)).findings
    return next((f for f in found if f.status in ("suspected", "confirmed")), None)


@pytest.mark.parametrize("library", ["sqlite", "pyarrow"])
def test_growth_of_a_library_names_the_library(library: str, spool_directory: Path) -> None:
    pytest.importorskip({"sqlite": "sqlite3"}.get(library, library))
    finding = _native_finding(library, "leak", spool_directory)
    assert finding is not None
    (suspect,) = finding.suspects
    assert (finding.kind, finding.phase) == ("native", "rollout")
    assert (suspect.role, suspect.name) == ("library", library)
    assert suspect.bytes_per_generation == pytest.approx(4 * MIB, rel=0.1)
    said = finding_sentence(finding, "generation")
    assert said.startswith(f"rollout keeps memory of {library}: ")
    assert any(f"The memory in use that {library} reports grows by" in e for e in finding.evidence)
    assert not any("C extensions" in line or "run.census" in line for line in finding.advice)
    assert any(library in line.lower() for line in finding.advice)


@pytest.mark.parametrize("what", KEEPS)
def test_memory_that_is_released_each_generation_is_not_a_finding(
    what: str, spool_directory: Path
) -> None:
    pytest.importorskip({"pyarrow": "pyarrow"}.get(what, "sqlite3"))
    assert _native_finding(what, "healthy", spool_directory) is None


def test_growth_of_thread_stacks_is_named_in_the_evidence(spool_directory: Path) -> None:
    finding = _native_finding("stacks", "leak", spool_directory)
    assert finding is not None
    assert (finding.kind, finding.phase, finding.suspects) == ("native", "rollout", ())
    assert any(line.startswith("Threads pile up") for line in finding.advice)
    (line,) = [line for line in finding.evidence if line.startswith("The growth is in")]
    assert re.fullmatch(
        r"The growth is in thread stacks \(\+[45]\.\d\d MiB per generation\)\.", line
    )


FLAT = """
import leakline
from leakline.probes.memory import process_memory
run = leakline.init(mode="offline", quiet=True)
for generation in range(12):
    run.generation(generation)
run.finish()
assert process_memory._sqlite_memory_used.cache_info().misses == 0
"""


def test_a_program_without_libraries_and_growth_has_no_native_series() -> None:
    run_program(FLAT)
    ends = generation_samples()
    assert len(ends) == 12
    assert not [n for s in ends for n in s if n.startswith(("library.", "mapping."))]


SHOWN = """
import sys, leakline
class TradingEnvironment:
    pass
class DDPGAgent:
    pass
run = leakline.init(mode="offline", quiet="quiet" in sys.argv, watch=[TradingEnvironment, DDPGAgent])
run.expect(TradingEnvironment, 2)
run.expect(DDPGAgent, (16, 17), after="evolve_population")
kept = [TradingEnvironment() for _ in range(3)], [DDPGAgent() for _ in range(16)]
run.generation(1)
with run.phase("evaluate_population"):
    kept += (bytearray(30 << 20),)
run.snapshot("not to be seen")
run.snapshot("Gen 1: After evaluate_population", show=True)
print(run.report())
run.snapshot("nor this")
print("the end", file=sys.stderr)
"""
RULER = "=" * 78


def test_a_printed_snapshot_looks_as_in_the_report() -> None:
    done = run_program(SHOWN, LEAKLINE_SAMPLE_SECONDS="0")
    title = "MEMORY SNAPSHOT: Gen 1: After evaluate_population"
    _, head, shown, rest = done.stderr.split(f"{RULER}\n")
    # It is printed immediately, before the program continues.
    assert head == f"{title}\n"
    assert "the end\n" in rest
    in_report = done.stdout.partition(f"{title}\n{RULER}\n")[2]
    told = in_report.partition("MEMORY TREND")[0].splitlines()
    assert shown.splitlines() == [line for line in told if line and not line.startswith("=")]
    assert re.search(r"RSS \(actual RAM\): +\d+\.\d\d GiB\n", shown)
    assert re.search(r"TradingEnvironment: +3   <- should be 2\n", shown)
    assert re.search(r"DDPGAgent: +16   <- should be 16 to 17 after evolve_population\n", shown)
    assert shown.isascii()
    assert "not to be seen" not in done.stderr
    assert "nor this" not in done.stderr


def test_a_quiet_run_shows_no_snapshot() -> None:
    done = run_program(SHOWN, "quiet")
    assert "MEMORY SNAPSHOT: Gen 1" in done.stdout
    assert done.stderr == "the end\n"


SHARED_FILES = """
import os, sys, leakline
import multiprocessing
from multiprocessing.shared_memory import SharedMemory
kind, healthy = sys.argv[1], sys.argv[2] == "healthy"
kept, left = [], []

def leave(name):
    with open("/dev/shm/" + (name or f"torch_{os.getpid()}_1_0"), "wb") as file:
        file.write(b"x" * 2_000_000)

run = leakline.init(mode="offline", quiet=True)
for generation in range(30):
    run.generation(generation)
    with run.phase("work"):
        if kind in ("kept", "unlinked"):
            kept.append(SharedMemory(create=True, size=2_000_000))
            kept[-1].buf[:] = b"x" * 2_000_000
            if kind == "unlinked":
                kept[-1].unlink()
            if healthy and len(kept) > 3:
                old = kept.pop(0)
                old.close()
                if kind == "kept":
                    old.unlink()
        else:
            name = f"leaklinetest_{os.getpid()}_{generation}" if kind == "unknown" else ""
            child = multiprocessing.get_context("fork").Process(target=leave, args=(name,))
            child.start()
            child.join()
            left.append("/dev/shm/" + (name or f"torch_{child.pid}_1_0"))
            if healthy:
                os.unlink(left.pop())
run.finish()
for segment in kept:
    segment.close()
    if kind == "kept":
        segment.unlink()
for path in left:
    os.unlink(path)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
@pytest.mark.parametrize(
    ("kind", "status", "memory", "advice"),
    [
        ("kept", "confirmed", "shared_memory", "Files /dev/shm/psm* grow"),
        ("unlinked", "confirmed", "shared_memory", "Deleted files in /dev/shm stay in memory"),
        ("exited", "confirmed", "shared_memory", "Files /dev/shm/torch* grow"),
        ("unknown", "watch", "external", "Files /dev/shm/leaklinetest* grow"),
    ],
)
def test_growth_of_shared_memory_names_the_files(
    kind: str, status: str, memory: str, advice: str, spool_directory: Path
) -> None:
    """Files whose creator is unknown may be another program's, so they are never a leak of the run."""
    run_program(SHARED_FILES, kind, "leaking")
    found = [f for f in examine(history_of(spool_directory)).findings if f.kind == memory]
    assert [f.status for f in found] == [status]
    assert any(line.startswith(advice) for line in found[0].advice), found[0].advice


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
@pytest.mark.parametrize("kind", ["kept", "unlinked", "exited", "unknown"])
def test_shared_memory_that_is_freed_does_not_grow(kind: str, spool_directory: Path) -> None:
    run_program(SHARED_FILES, kind, "healthy")
    findings = examine(history_of(spool_directory)).findings
    assert not [f for f in findings if f.kind in ("shared_memory", "external")]
