"""A line of advice is given only where the finding has the evidence for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builder import EVALUATE, EVOLVE, GIB, MIB, Leak, Training, history_of, kept_environments
from pieces import assessed, candidate, cause_of, growing, with_events, with_series

from leakline.analysis import RunHistory, examine, history_from_batches
from leakline.analysis.attribution.candidates import family_of
from leakline.analysis.findings.advice import MAX_LINES, RULES, advice_for
from leakline.analysis.memory.uncollected_memory import Waiting
from leakline.snapshot import (
    CYCLIC_GARBAGE,
    GRAPH_NODE,
    Batch,
    Event,
    ProcessIdentity,
    RunHeader,
    Snapshot,
)

OWN = "app.Record"


def advised(
    kind: Any = "objects", owner: str | None = OWN, *more: str, holder: str | None = None, container: str | None = None,
    channel: str = "private", collector_off: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    """Return the advice for a cause of this kind, with its owner, other growing types and holder."""
    members = [
        candidate(name, family_of(name, "type")) for name in ((owner, *more) if owner else more)
    ]
    if container is not None:
        members.append(candidate(container, "container"))
    waiting = Waiting(5000, growing(100), collector_off=True) if collector_off else None
    cause = cause_of(*members, kind=kind, rate=8 * MIB)
    return advice_for(assessed(cause, "counts", channel=channel, waiting=waiting), holder)


# Text to look for in the advice -> evidence that triggers it.
CASES: dict[str, dict[str, Any]] = {
    "plt.close(figure)": {"owner": "matplotlib.figure.Figure"},
    "Detach tensors before storing": {"kind": "graph", "owner": "torch.Tensor"},
    "total += loss.item()": {"kind": "graph", "owner": GRAPH_NODE},
    "detach the hidden state between steps": {"kind": "graph", "owner": GRAPH_NODE},
    "Drop batch and result tensors": {"kind": "tensors", "owner": "torch.Tensor"},
    "Log numbers, not tensors": {"kind": "tensors", "owner": "torch.Tensor", "holder": "wandb.Run.history[*]"},
    "zero_grad(set_to_none=True)": {"kind": "tensors", "owner": "torch.Tensor", "holder": "app.Net.weight.grad"},
    "ctx.save_for_backward: tensors that MyFunctionBackward": {"owner": "app.MyFunctionBackward"},
    "functools.lru_cache(maxsize=…)": {"holder": "app.Policy.act.<cache>[*]"},
    "A hook keeps the object": {"holder": "app.Trainer.optimizer._optimizer_step_post_hooks[*].<closure>.kept[*]"},
    "Hooks are registered repeatedly": {"more": ["torch.utils.hooks.RemovableHandle"]},
    "A logging handler is added repeatedly": {"holder": "search.LOGGER.handlers[*].records[*]"},
    "A logging handler is created repeatedly": {"owner": "logging.handlers.RotatingFileHandler"},
    "Log records are kept": {"owner": "logging.LogRecord"},
    "log text instead of objects": {"holder": "logging.handlers.MemoryHandler.buffer[*].args[*]"},
    "clear sys.last_value": {"holder": "app.errors[*].<traceback>.rollout.<locals>.steps[*]"},
    "Exceptions are kept with their frames": {"more": ["traceback"]},
    "A registered callback keeps": {"holder": "app.make_logger.<locals>.log.<closure>.kept[*]"},
    "is a local variable of a call that has not returned": {"holder": "__main__.train.<locals>.trajectory[*]"},
    "weakref.finalize keeps": {"holder": "weakref.finalize._registry[*]"},
    "old param_groups": {"holder": "app.Trainer.optimizer.param_groups[*]"},
    "Threads pile up: join them": {"owner": "threading.Thread"},
    "A thread keeps the object": {"holder": "threading.Thread._args[*]"},
    "Finished tasks and futures": {"owner": "concurrent.futures._base.Future"},
    "Files stay open: use with": {"owner": "_io.BufferedReader"},
    "Connections stay open": {"owner": "sqlite3.Connection"}, "Mapped files stay open": {"owner": "mmap.mmap"},
    "Helper processes are kept": {"owner": "subprocess.Popen"},
    "Functions are retraced": {"more": ["tensorflow.python.eager.function.ConcreteFunction"]},
    "with load_state_dict(other.state_dict())": {"more": ["torch.nn.parameter.Parameter"]},
    "Drop arrays at the end": {"kind": "arrays", "owner": "numpy.ndarray"},
    "for a dict, delete the oldest keys or use functools.lru_cache.": {"container": "app.Log.losses"},
    "run.track(name, it, capacity=…)": {"kind": "container", "owner": None, "container": "app.Log.losses"},
    "app.Trainer.history[*] keeps Record alive": {"holder": "app.Trainer.history[*]"}, "Reuse one Record": {},
    "The garbage collector is off": {"kind": "cyclic_garbage", "collector_off": True},
    "Break reference cycles": {"kind": "cyclic_garbage"},
    "MALLOC_ARENA_MAX=2": {"kind": "allocator_retained", "owner": None},
    "MALLOC_MMAP_THRESHOLD_=131072": {"kind": "allocator_retained", "owner": None},
    "memory outside Python": {"kind": "native", "owner": None},
    "Look at the worker processes": {"kind": "children", "owner": None},
    "Unlink shared memory": {"kind": "shared_memory", "owner": None},
    "expandable_segments": {"kind": "gpu_fragmentation", "owner": None},
    "destroy_process_group()": {"kind": "gpu", "owner": None, "channel": "gpu.0.outside_bytes"},
}  # fmt: skip


def of_case(evidence: dict[str, Any]) -> tuple[str, ...]:
    options = {"kind": "objects", "owner": OWN, **evidence}
    return advised(options.pop("kind"), options.pop("owner"), *options.pop("more", ()), **options)


@pytest.mark.parametrize("words", CASES)
def test_advice_appears_with_its_evidence(words: str) -> None:
    assert any(words in line for line in of_case(CASES[words])), of_case(CASES[words])


@pytest.mark.parametrize("words", CASES)
def test_advice_is_absent_without_its_evidence(words: str) -> None:
    """Only cases with the same evidence may contain these words."""
    also = {
        "Detach tensors before storing": set(), "total += loss.item()": {"detach the hidden state between steps"},
        "detach the hidden state between steps": {"total += loss.item()"},
        "Break reference cycles": {"The garbage collector is off"},
        "Drop batch and result tensors": {"Log numbers, not tensors", "zero_grad(set_to_none=True)"},
        # A finding about an object of which nothing else is known.
        "Reuse one Record": {
            "Hooks are registered repeatedly", "Exceptions are kept with their frames", "Functions are retraced",
            "with load_state_dict(other.state_dict())",
            "for a dict, delete the oldest keys or use functools.lru_cache.",
        },
        "for a dict, delete the oldest keys or use functools.lru_cache.": {"run.track(name, it, capacity=…)"},
        "MALLOC_ARENA_MAX=2": {"MALLOC_MMAP_THRESHOLD_=131072"},
        "MALLOC_MMAP_THRESHOLD_=131072": {"MALLOC_ARENA_MAX=2"},
    }  # fmt: skip
    for other, evidence in CASES.items():
        if other != words and other not in also.get(words, set()):
            assert not any(words in line for line in of_case(evidence)), other


def test_every_advice_rule_has_a_case() -> None:
    lines = [line for evidence in CASES.values() for line in of_case(evidence)]
    for rule in RULES:
        parts = [part for part in re.split(r"{\w+}", rule.text) if part]
        assert any(all(part in line for part in parts) for line in lines), rule.text


def test_similar_names_are_not_evidence() -> None:
    for path in (
        "app.Server.event_handlers[*]", "app.Scheduler.hooked[*]", "app.cache[*]", "app.Gradient.steps[*]",
        "app.Book.locals[*]", "app.threading_model[*]", "app.login.handlers[*]",
    ):  # fmt: skip
        (line,) = advised(holder=path)
        assert line.startswith(f"{path} keeps Record alive")


def test_the_holder_is_named_once_and_garbage_has_none() -> None:
    lines = advised(holder="app.Policy.act.<cache>[*]")
    assert not any("keeps Record alive" in line for line in lines)
    assert not any(CYCLIC_GARBAGE in line for line in advised(holder=CYCLIC_GARBAGE))


def test_no_bound_is_advised_for_the_cache_of_a_function() -> None:
    (line,) = advised("container", None, container="app.Policy.act.<cache>")
    assert "lru_cache(maxsize=…)" in line


def test_the_number_of_advice_lines_is_limited() -> None:
    lines = advised(
        "graph", OWN, "torch.nn.parameter.Parameter", "matplotlib.figure.Figure", "threading.Thread", "traceback",
        "asyncio.Task", "socket.socket", "torch.utils.hooks.RemovableHandle", holder="wandb.x.grad.<cache>[*]",
    )  # fmt: skip
    assert len(lines) == MAX_LINES == len(set(lines))


def leaking(*events: Event, **series: Callable[[int], float]) -> RunHistory:
    """Return a run that leaks environments."""
    history = Training(leaks=(kept_environments(),)).history()
    return with_series(with_events(history, *events), series)


@pytest.mark.parametrize(
    ("series", "words"),
    [("process.open_files", "The number of open files rises"), ("tfjs.tensors", "disposeVariables() also disposes")],
)  # fmt: skip
def test_only_rising_counters_get_advice(series: str, words: str) -> None:
    assert advice_on(leaking(**{series: lambda g: 20 + 3 * g}), words)
    assert not advice_on(leaking(**{series: lambda g: 20}), words)
    assert not advice_on(leaking(), words)


def test_threads_explain_native_memory_and_not_kept_objects() -> None:
    words = "each has a stack"
    assert not advice_on(leaking(**{"process.threads": lambda g: 20 + 3 * g}), words, "objects")
    native = Training(generations=40, leaks=(Leak(EVALUATE, 8 * MIB),)).history()
    assert not advice_on(native, words, "native")
    assert advice_on(with_series(native, {"process.threads": lambda g: 5 + g}), words, "native")


def cleanup(freed: float) -> Event:
    return Event(3, 5.0, "cleanup", "agent", 1, None, {"freed_bytes": freed})


def test_a_cleanup_that_frees_nothing_is_reported_as_missing_the_leak() -> None:
    words = "The cleanup agent ran twice and freed nothing"
    assert advice_on(leaking(cleanup(0), cleanup(-4096)), words)
    assert not advice_on(leaking(cleanup(0), cleanup(MIB)), words)


def cleaned(every: int, freed: float) -> RunHistory:
    """Return a run that gains 10 MiB per generation and permanently frees ``freed`` bytes every n-th generation."""
    ran = range(4, 40, every)
    leaks = (
        Leak(EVALUATE, 10 * MIB, {"agents.DDPGAgent": 4}),
        Leak(EVOLVE, -freed, times=lambda g: float(g in ran)),
    )
    history = Training(generations=40, leaks=leaks, noise=0.2 * MIB).history()
    more = [Event(9, 5.0 + g, "cleanup", "agent", g, None, {"freed_bytes": freed}) for g in ran]
    return with_events(history, *more)


def advice_on(history: RunHistory, words: str, kind: str | None = None) -> list[str]:
    findings = [f for f in examine(history).findings if kind is None or f.kind == kind]
    assert findings
    assert findings[0].status in ("watch", "suspected", "confirmed")
    return [line for line in findings[0].advice if words in line]


def test_an_effective_cleanup_is_advised_to_run_more_often() -> None:
    (line,) = advice_on(cleaned(9, 60 * MIB), "Run the cleanup agent")
    found = re.search(
        r"every (\d+) generations: it ran 4 times in \d+ generations and freed about ([\d.]+) MiB", line
    )  # fmt: skip
    assert found is not None, line
    # The interval at which the accumulated growth equals what one cleanup frees.
    assert int(found[1]) in (5, 6)
    assert float(found[2]) == pytest.approx(60, abs=5)
    (line,) = advice_on(cleaned(4, 8 * MIB), "Run the cleanup agent")
    assert "in each generation" in line


def test_an_ineffective_cleanup_is_not_advised_to_run_more_often() -> None:
    """Here it frees less than a generation gains; all reasons are in test_cleanup_effects.py."""
    assert advice_on(cleaned(9, MIB), "Run the cleanup") == []


def test_native_growth_without_watched_types_suggests_a_call() -> None:
    def native(*watch: str, counted: bool = True, tracked: bool = False) -> RunHistory:
        history = Training(
            generations=40, leaks=(Leak(EVALUATE, 8 * MIB),), watch=watch, declare_buffer=tracked
        ).history()
        left_out = () if tracked else ("tracked.",) if counted else ("tracked.", "type.")
        (process,) = history.processes
        kept = {n: column for n, column in process.series.items() if not n.startswith(left_out)}
        return replace(history, processes=(replace(process, series=kept),))

    words = "To count all types at the next phase end, call run.census() in evaluate_population."
    (line,) = advice_on(native(), words, "native")
    assert "leakline.init(watch=[…])" in line
    assert "run.track(name, it)" in line
    for history in (native("agents.Actor"), native(tracked=True), native(counted=False)):
        assert (
            advice_on(history, "Nothing that could explain the growth is watched", "native") == []
        )
    # Counts that explain the growth already name it.
    kept = Training(leaks=(kept_environments(),), watch=(), declare_buffer=False).history()
    assert advice_on(kept, "Nothing that could explain the growth is watched") == []


def on_device(split: float | None) -> RunHistory:
    """Return a run whose allocator keeps growing on the device; ``split``: share that cannot be given back."""

    def spare(g: int) -> float:
        return GIB + 384 * MIB * (g + 1)

    series: dict[str, Callable[[int], float]] = {
        "cuda.1.allocated_bytes": lambda g: 4 * GIB, "cuda.1.reserved_bytes": lambda g: 4 * GIB + spare(g),
        "gpu.1.total_bytes": lambda g: 80 * GIB,
    }  # fmt: skip
    if split is not None:
        series["cuda.1.inactive_split_bytes"] = lambda g: split * spare(g)
    return with_series(Training(generations=40).history(), series)


def test_only_a_cache_that_torch_can_free_is_advised_to_be_cleared() -> None:
    (line,) = advice_on(on_device(0.1), "empty_cache", "gpu_fragmentation")
    # The minimum of the newest four generation ends: (1 + 37 * 0.375) GiB less a tenth.
    assert line == (
        "torch keeps at least 13.39 GiB of cuda.1 that no tensor uses: "
        "calling torch.cuda.empty_cache() once per generation releases it."
    )
    (line,) = advice_on(on_device(None), "empty_cache", "gpu_fragmentation")
    assert line.endswith("releases the blocks that are not split.")
    # Split memory cannot be given back; test_memory_kinds.py has the limits.
    lines = advice_on(on_device(0.9), "", "gpu_fragmentation")
    assert not any("empty_cache" in line for line in lines)
    assert any("expandable_segments" in line for line in lines)


@pytest.mark.parametrize(
    ("rise", "words"), [(0, "Look at the worker processes"), (1, "Helper processes pile up")]
)
def test_more_child_processes_get_other_advice_than_larger_ones(rise: int, words: str) -> None:
    history = with_series(
        Training(generations=40).history(),
        {
            "children.count": lambda g: 4 + rise * g,
            "children.pss_bytes": lambda g: (50 + 9 * g) * MIB,
        },
    )
    (finding,) = [f for f in examine(history).findings if f.kind == "children"]
    (line,) = finding.advice
    assert line.startswith(words)


@pytest.mark.parametrize(
    ("resident", "is_copied"), [(0, True), (1, False), (9, False), (-9, False)]
)
def test_workers_that_may_copy_pages_get_advice_on_both_causes(
    resident: float, is_copied: bool
) -> None:
    """``resident``: growth of their resident memory in MiB per generation."""
    history = with_series(
        Training(generations=40).history(),
        {
            "children.count": lambda g: 4,
            "children.uss_bytes": lambda g: (50 + 3 * g) * MIB,
            "children.rss_bytes": lambda g: (900 + resident * g + g % 2) * MIB,
        },
    )
    (finding,) = [f for f in examine(history).findings if f.kind == "children"]
    # A leaking worker may first use free memory that it has inherited.
    assert finding.advice[0].startswith("Look at the worker processes")
    assert ["copy the pages" in line for line in finding.advice[1:]] == [True] * is_copied


def test_a_program_started_by_leakline_run_is_advised_to_call_init() -> None:
    """It has no run whose methods it could call."""
    rows = []
    for i in range(60):
        private = (100 + 8 * i) * MIB
        samples = {
            "process.uss_bytes": private, "process.rss_bytes": private + 50 * MIB, "type.a.Actor.count": 5,
        }  # fmt: skip
        rows.append(Snapshot(i, 1e9 + i, float(i), None, None, "", "sample", samples))
    header = RunHeader("r", "p", "r", "second", None, 1e9)
    history = history_from_batches(header, [Batch(ProcessIdentity("i"), tuple(rows))])
    (line,) = advice_on(history, "Nothing that could explain the growth is watched", "native")
    assert "Pass the classes that may grow to leakline.init(watch=[…])" in line
    assert "run.census()" not in line


def test_growth_seen_from_outside_is_not_called_native_memory() -> None:
    """From outside it is unknown what belongs to Python and what to C extensions."""
    history = history_of([GIB + 10 * MIB * generation for generation in range(40)])
    finding = examine(history).findings[0]
    assert (finding.kind, finding.status) == ("native", "confirmed")
    said = " ".join((*finding.evidence, *finding.advice))
    assert "observed from outside" in said
    assert "start the program with `leakline run -- ...` or call `leakline.init` in it" in said
    assert "C extensions" not in said
    assert "no counted Python object" not in said
