"""Advice for findings. Each line of advice requires evidence from the run.

Three tables contain the advice: `RULES` by growing type and holder, `_BY_KIND` by kind of memory, and `_BY_COUNTER` by
rising process counter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...snapshot import CYCLIC_GARBAGE, GRAPH_NODE
from ...text_format import format_bytes, short_name
from ..assertions.expected_counts import tracked_names
from ..attribution.candidates import Family, grows_larger
from ..attribution.causes import Cause, holds
from ..generation_axis import UNITS_OF_TIME
from ..memory.memory_kinds import FILES_BY_PREFIX, SLAB, copies_pages, idle_in_cache
from ..results import Finding, Kind
from ..run_history import RunHistory
from ..series_facts import FIGURE
from ..statistics.count_evidence import LOOK_BACK, count_growth
from ..statistics.trend import floor_slope
from ..timeline import Timeline
from ..timeline_analysis import Assessed
from .cleanup_effects import rare_cleanup, vain_cleanup
from .worker_growth import kept_in_child, scans_of

MAX_LINES: Final = 6
# If no object was ever counted, memory outside Python is only one of several possible causes.
_FROM_OUTSIDE: Final = (
    "To see types and holders, start the program with `leakline run -- ...` or call `leakline.init` in it.",
)
# Native code is suspected only after objects have been counted, so these lines ask for heap scans.
_NEXT_LOOK: Final = (
    "More heap scans will run automatically and show more; to request a scan, call run.census()."
)
_TOO_FEW_LOOKS: Final = (
    "The heap was scanned too few times before the run ended: "
    "let the program run longer, or call run.census()."
)
_CACHE: Final = "<cache>"
_CHILDREN: Final = "children.count"
_MOST_PREFIXES: Final = 2
# A series explains a finding if it was read this often and grows by this share of the finding's growth.
_MIN_READINGS: Final = 4
_GOOD_PART: Final = 0.25
# Kinds of events with which a program declares what to count.
_DECLARES: Final = ("watch", "track", "expect")


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of advice and its conditions. All conditions that are set must hold.

    ``names`` is a pattern for the growing types, ``paths`` a pattern for holders and growing containers. In ``text``,
    ``{what}`` is replaced by the first type that matches, ``{path}`` by the first path that matches, and ``{owner}`` by
    the finding's first suspect. ``keeps`` is True if the text says what keeps the objects.
    """

    text: str
    kinds: tuple[Kind, ...] = ()
    owner: tuple[Family, ...] = ()
    names: str = ""
    paths: str = ""
    keeps: bool = False


RULES: Final = (
    Rule(
        "Close each figure after saving it: call plt.close(figure), since plt.close() closes only the current figure.",
        names=rf"^{re.escape(FIGURE)}$",
        keeps=True,
    ),
    Rule(
        "A running sum of losses keeps the graph of each: detach the loss before adding it: total += loss.item().",
        names=rf"^{re.escape(GRAPH_NODE)}$",
        keeps=True,
    ),
    Rule(
        "A state carried from step to step keeps the graph of every step: "
        "detach the hidden state between steps: hidden = hidden.detach().",
        names=rf"^{re.escape(GRAPH_NODE)}$",
        keeps=True,
    ),
    Rule(
        "Detach tensors before storing them: keep loss.item() or loss.detach(), because the loss holds its graph.",
        kinds=("graph",),
        names=rf"^(?!{re.escape(GRAPH_NODE)}$)",
    ),
    Rule(
        "Log numbers, not tensors: call .item() on values before they reach {path}.",
        kinds=("graph", "tensors"),
        paths=r"\b(wandb|tensorboardX?|SummaryWriter|[Ll]ogger)\b",
    ),
    Rule(
        "Set gradients to None between steps: optimizer.zero_grad(set_to_none=True); for second-order "
        "gradients, use torch.autograd.grad, because backward(create_graph=True) keeps the graph.",
        paths=r"\.grad\b",
    ),
    Rule(
        "Drop batch and result tensors at the end of the phase; keep numbers, not tensors.",
        kinds=("tensors",),
    ),
    Rule(
        "Save tensors with ctx.save_for_backward: tensors that {what} keeps as attributes outlive the backward pass.",
        names=r"Backward$",
        owner=("object",),
    ),
    Rule(
        "{path} is a cache that keeps every argument, including self: give it a bound "
        "(functools.lru_cache(maxsize=…)), or store the results on the object itself.",
        paths=r"\.<cache>|lru_cache",
        keeps=True,
    ),
    Rule(
        "A hook keeps the object: register the hook once, and call remove() on its handle when you are done.",
        paths=r"_hooks\b",
        keeps=True,
    ),
    Rule(
        "Hooks are registered repeatedly: keep each handle, and call its remove() method.",
        names=r"\bRemovableHandle$",
    ),
    Rule(
        "A logging handler is added repeatedly: add it once, or call removeHandler() and close() for the old handler.",
        paths=r"(?i)(?:^|\.)(?!logging\.handlers\.)(_?log|_?logger|logging|root)\.handlers\b",
        keeps=True,
    ),
    Rule(
        "Log records are kept: limit how many the handler collects, and remove the handlers of earlier trials.",
        names=r"^logging\.LogRecord$",
    ),
    Rule(
        "A logging handler is created repeatedly: create it once, or "
        "call removeHandler() and close() for the old handler.",
        names=r"^logging\.(.*\.)?\w*Handler$",
    ),
    Rule(
        "{path} keeps log records and the objects logged with them: flush it, and log text instead of objects.",
        paths=r"MemoryHandler\.buffer|\.records\[\*\]\.args\b",
        keeps=True,
    ),
    Rule(
        "A stored exception keeps the local variables of all calls that it passed through: keep str(error) or "
        "error.with_traceback(None), and clear sys.last_value.",
        paths=r"<traceback>|^sys\.last_",
        keeps=True,
    ),
    Rule(
        "Exceptions are kept with their frames: keep str(error) or error.with_traceback(None) instead.",
        names=r"(^|\.)traceback$",
    ),
    Rule(
        "A registered callback keeps the object ({path}): unregister the callback, or let it use a weakref.",
        paths=r"^(?!.*_hooks\b).*\.<(?:closure|defaults)>",
        keeps=True,
    ),
    Rule(
        "{path} is a local variable of a call that has not returned: empty it, or let the function return.",
        paths=r"^(?!.*<(?:closure|cache|traceback)>).*\.<locals>\.",
        keeps=True,
    ),
    Rule(
        "weakref.finalize keeps its callback and arguments alive: do not pass it the object or the object's methods.",
        paths=r"\bfinalize\._registry\b",
        keeps=True,
    ),
    Rule(
        "Parameters are added to the optimizer repeatedly: create a new optimizer, or remove the old param_groups.",
        paths=r"\.param_groups\b",
        keeps=True,
    ),
    Rule(
        "Threads pile up: join them, or submit the work to one ThreadPoolExecutor.",
        names=r"^(threading|concurrent\.futures\.thread)\.(Thread|Timer|ThreadPoolExecutor)$",
    ),
    Rule(
        "A thread keeps the object: let the thread end, or bound the queue that it works on.",
        paths=r"^(threading|_threading_local)\.",
        keeps=True,
    ),
    Rule(
        "Finished tasks and futures are kept with their results: "
        "drop each one after calling result(), or in a done callback.",
        names=r"^(_?asyncio|concurrent)\.(.*\.)?(Task|Future)$",
    ),
    Rule(
        "Files stay open: use with open(…), or close() them.",
        names=r"^_?io\.\w+$|^_?tempfile\.\w+$",
    ),
    Rule(
        "Connections stay open: close() them, or reuse one connection.",
        names=r"^_?(socket|ssl|sqlite3|requests|aiohttp|httpx|psycopg2?|sqlalchemy)\."
        r"(.*\.)?(socket|SSLSocket|Connection|Session|ClientSession|Client)$",
    ),
    Rule("Mapped files stay open: close() each map.", names=r"^mmap\.mmap$|(^|\.)SharedMemory$"),
    Rule(
        "Helper processes are kept: wait() for each process, and drop its object once it has ended.",
        names=r"^(subprocess\.Popen|multiprocessing\.(.*\.)?(\w*Process|Pool)|concurrent\..*ProcessPoolExecutor)$",
    ),
    Rule(
        "Functions are retraced for each Python value: pass tensors, and specify the input signature.",
        names=r"ConcreteFunction$",
    ),
    Rule(
        "Each {owner} that is kept has its own parameters: instead of using deepcopy, copy the weights into an "
        "existing {owner} with load_state_dict(other.state_dict()), and drop each {owner} that has been replaced.",
        owner=("object",),
        names=r"^torch\.nn\.parameter\.Parameter$",
    ),
    Rule(
        "Drop arrays at the end of the phase; keep only summary numbers, or write the arrays to disk.",
        kinds=("arrays",),
    ),
)  # fmt: skip

_BY_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "native": (
        "Look for memory outside Python: C extensions, open handles, data loader workers; compare library versions.",
    ),
    "allocator_retained": (
        "Freed memory stays with the C allocator: try MALLOC_ARENA_MAX=2, or call malloc_trim(0) once per generation.",
        "Tensors that come and go may leave holes that glibc never fills: "
        "start the program with MALLOC_MMAP_THRESHOLD_=131072.",
    ),
    "children": ("Look at the worker processes: they grow, but this process does not.",),
    "gpu_fragmentation": (
        "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; allocated memory itself does not grow.",
    ),
    # The driver maps pinned memory as shared.
    "shared_memory": (
        "Unlink shared memory and files in /dev/shm once they are read; drop pinned tensors.",
    ),
    "cyclic_garbage": (
        "Break reference cycles (weakref, explicit None), or call gc.collect() once per generation to lower the peaks.",
    ),
}

# For children whose resident memory does not grow: they copy pages, or they first use free memory of their parent.
_COPY_ON_WRITE: Final = (
    "If the worker processes only read objects of this process, they copy the pages, because each read changes a "
    "reference count: keep the data in one NumPy array or tensor."
)

_SCAN_WORKERS: Final = "To see what grows in them, set LEAKLINE_SCAN_WORKERS=1."

# By the name of the library in its series.
_BY_LIBRARY: Final[Mapping[str, str]] = {
    "pyarrow": "Drop tables, arrays and buffers of pyarrow, and slices of them, which keep the entire buffer; then "
    "pyarrow.default_memory_pool().release_unused() returns free memory.",
    "sqlite": "Close SQLite connections, delete old rows of in-memory databases, and run PRAGMA shrink_memory to "
    "release caches.",
}

_OF_A_LIBRARY: Final = (
    "Close or free what the program creates with {0}; if it does, compare versions of {0}."
)

# (kinds of findings, or empty for all kinds; the series that rises; lines of advice)
_BY_COUNTER: Final[tuple[tuple[tuple[Kind, ...], str, tuple[str, ...]], ...]] = (
    ((), "process.open_files", ("The number of open files rises: use with open(…), or close() each file.",)),
    (("native", "allocator_retained"), "process.threads",
     ("Threads pile up, and each has a stack: join them, or use one ThreadPoolExecutor.",)),
    (("children", "shared_memory", "external"), _CHILDREN,
     ("Helper processes pile up: join or terminate each process before you start the next.",)),
    ((), "tfjs.tensors",
     ("Scope temporary tensors with tf.tidy(), and dispose() the tensors that it returns, including clipped gradients.",
      "Dispose variables only between sessions: tf.disposeVariables() also disposes the variables of a model in use.")),
)  # fmt: skip


def advice_for(
    a: Assessed,
    holder: str | None,
    timeline: Timeline | None = None,
    from_outside: bool = False,
    library: str = "",
) -> tuple[str, ...]:
    """Return at most MAX_LINES lines of advice, most specific lines first.

    With ``timeline``, advice on declared capacities and on torch's cache is included.
    ``library``: the library whose memory grows, if known.
    """
    cause, owner = a.cause, a.cause.owner
    paths = _paths(a, holder)
    larger = owner is not None and grows_larger(owner)
    rules = () if larger else RULES
    given = [(rule, text) for rule in rules if (text := _applied(rule, a, paths)) is not None]
    lines = [text for _, text in given]
    if a.waiting is not None and a.waiting.collector_off:
        lines.append(
            "The garbage collector is off: call gc.enable(), or gc.collect() once per generation."
        )
    if a.channel.startswith("gpu.") and a.channel.endswith(".outside_bytes"):
        lines.append(
            "This memory contains no tensors: end process groups with destroy_process_group(), "
            "and reuse contexts and streams."
        )
    if owner is not None and larger:
        what = holder or f"At least one {short_name(owner.name)}"
        lines.append(
            f"{what} grows because data is appended to it: keep only the newest part, or write older data to disk."
        )
    elif owner is not None and cause.kind != "cyclic_garbage":
        if not any(rule.keeps for rule, _ in given):
            lines += _for_objects(a, holder)
        lines += _bounds(a, timeline)
    if timeline is not None and cause.kind == "gpu_fragmentation":
        lines += _for_a_cache(timeline, a.channel)
    from_here = from_outside and cause.kind == "native"
    if timeline is not None and cause.kind in ("shared_memory", "external"):
        exact = _for_shared_memory(timeline, a)
        if exact:
            return tuple(dict.fromkeys((*exact, *lines)))[:MAX_LINES]
    general = _FROM_OUTSIDE if from_here else _BY_KIND.get(_freed(cause), ())
    if library:
        general = (_BY_LIBRARY.get(library, _OF_A_LIBRARY.format(library)),)
    lines.extend(general)
    return tuple(dict.fromkeys(lines))[:MAX_LINES]


def _freed(cause: Cause) -> Kind:
    """Return the kind of memory that the advice is about.

    If the objects only prevent the freed memory around them from being returned, the kind is ``allocator_retained``.
    """
    return "allocator_retained" if cause.behind == "allocator_retained" else cause.kind


def _paths(a: Assessed, holder: str | None) -> list[str]:
    """Return the known holders and growing containers of a cause, the owner's holder first."""
    members = a.cause.members
    found = [holder, *(member.holder for member in members)]
    found += [member.name for member in members if member.role == "container"]
    return [path for path in dict.fromkeys(found) if path and path != CYCLIC_GARBAGE]


def _applied(rule: Rule, a: Assessed, paths: Sequence[str]) -> str | None:
    """Return a rule's text with its placeholders filled in, or None if the rule does not apply."""
    owner = a.cause.owner
    if rule.kinds and a.cause.kind not in rule.kinds:
        return None
    if rule.owner and (owner is None or owner.family not in rule.owner):
        return None
    types = [member.name for member in a.cause.members if member.role == "type"]
    name = next((each for each in types if re.search(rule.names, each)), None)
    path = next((each for each in paths if re.search(rule.paths, each)), None)
    if (rule.names and name is None) or (rule.paths and path is None):
        return None
    known = {
        "{what}": short_name(name or ""),
        "{path}": path or "",
        "{owner}": short_name(owner.name if owner else ""),
    }
    text = rule.text
    for place, value in known.items():
        text = text.replace(place, value)
    return text


def _for_objects(a: Assessed, holder: str | None) -> list[str]:
    """Return advice that names the holder or, if no holder is known, general advice for a class of the program."""
    owner = a.cause.owner
    if owner is None or owner.family == "container":
        return []
    name = short_name(owner.name)
    if holder and holder != CYCLIC_GARBAGE:
        return [
            f"{holder} keeps {name} alive: remove the entry once the object is no longer needed."
        ]
    if owner.family != "object":
        return []
    if owner.growth.each >= 1:
        return [f"Reuse one {name}, or drop the last reference to it at the end of the phase."]
    return [f"Drop the last reference to {name} once it is no longer needed."]


def _bounds(a: Assessed, timeline: Timeline | None) -> list[str]:
    owner = a.cause.owner
    if owner is None:
        return []
    # A function's cache is bounded by its decorator.
    kept = [
        m.name
        for m in a.cause.members
        if m.role == "container" and holds(m, owner) and _CACHE not in m.name
    ]
    # A recording contains the lengths of containers but not their types.
    lines = [
        f"Bound {path}, or clear it every {_where(a)}: for a list, use collections.deque(maxlen=…); for a dict, delete "
        "the oldest keys or use functools.lru_cache."
        for path in kept[:1]
    ]
    undeclared = owner.role == "container" and _CACHE not in owner.name and not owner.overfull
    if undeclared and _path_is_bounded_by_design(a):
        tracked = timeline is not None and owner.name in tracked_names(timeline)
        what = "its capacity" if tracked else "that size"
        lines.append(
            f"If {owner.name} is meant to fill up to a fixed size, declare {what}: run.track(name, it, capacity=…)."
        )
    return lines


def _for_a_cache(timeline: Timeline, series: str) -> list[str]:
    """Return advice about unused memory in torch's cache.

    This advice applies to fragmentation only: where tensors grow, torch uses its cache before it requests more
    memory from the driver.
    """
    idle = idle_in_cache(timeline, series)
    if idle is None:
        return []
    kept = f"torch keeps at least {format_bytes(idle.bytes)} of {idle.device} that no tensor uses"
    gives = "releases it" if idle.whole else "releases the blocks that are not split"
    return [f"{kept}: calling torch.cuda.empty_cache() once per generation {gives}."]


def _for_shared_memory(timeline: Timeline, a: Assessed) -> list[str]:
    """Return advice for each kind of shared or kernel memory that grows as the finding does."""
    if a.channel == SLAB:
        return [
            "The kernel's memory grows, for example with open files, sockets or processes: close what is not in use."
        ]
    names = [name for name in sorted(timeline.series) if name.startswith(FILES_BY_PREFIX)]
    files = [name for name in names if _grows_with(timeline, name, a)]
    lines = [
        f"Files /dev/shm/{name.removeprefix(FILES_BY_PREFIX).removesuffix('.bytes')}* grow: unlink each one after its "
        "last use, also those of processes that have exited."
        for name in files[:_MOST_PREFIXES]
    ]
    if _grows_with(timeline, "shm.deleted_bytes", a):
        lines.append(
            "Deleted files in /dev/shm stay in memory while a process has them open or mapped: close() each one."
        )
    if _grows_with(timeline, "pinned.allocated_bytes", a):
        lines.append("Pinned host memory grows: drop pinned tensors, or reuse their buffers.")
    elif _grows_with(timeline, "pinned.reserved_bytes", a):
        lines.append(
            "torch's cache of pinned host memory grows: reuse a few buffers of equal size."
        )
    return lines


def _grows_with(timeline: Timeline, series: str, a: Assessed) -> bool:
    """Return True if a series explains a good part of a finding's growth since the finding began."""
    if not timeline.has(series):
        return False
    x, values = timeline.points(series, newest=LOOK_BACK)
    since = a.start[0] if a.start is not None else 0.0
    read = [(at, value) for at, value in zip(x, values, strict=True) if at >= since]
    if len(read) < _MIN_READINGS:
        return False
    slope = floor_slope([at for at, _ in read], [value for _, value in read])
    return slope.rises and slope.estimate >= _GOOD_PART * a.cause.rate.estimate


def _where(a: Assessed) -> str:
    return "time " + a.cause.place.phase + " ends" if a.cause.place.phase else "generation"


def _path_is_bounded_by_design(a: Assessed) -> bool:
    """Return True if the container may be a buffer of fixed size: its length rises, and the growth matters."""
    return "counts" in a.witnesses and a.scale.is_material(a.cause.rate.estimate, a.window)


def with_counters(finding: Finding, history: RunHistory, timeline: Timeline) -> Finding:
    """Return the finding with additional advice based on process counters and recorded cleanups."""
    if finding.status in ("ok", "filling", "recovered"):
        return finding
    more = [
        line
        for kinds, series, lines in _BY_COUNTER
        if (not kinds or finding.kind in kinds) and _rises(timeline, series)
        for line in lines
    ]
    vain = vain_cleanup(finding, history.events_of("cleanup"))
    more += [vain.sentence] if vain is not None else []
    rare = rare_cleanup(finding, history.events_of("cleanup"), timeline)
    more += [rare.sentence(history.unit)] if rare is not None else []
    more += _to_be_counted(finding, history, timeline)
    known = finding.advice
    if finding.kind == "children" and _rises(timeline, _CHILDREN):
        # If the number of child processes rises, advice about the growth of each one does not apply.
        known = tuple(line for line in known if line not in _BY_KIND["children"])
    elif (kept := kept_in_child(finding)) is not None:
        name, holder, _ = kept
        if holder:
            known = (f"{holder} in the child process keeps {short_name(name)}: bound or clear it.",)
    elif finding.kind == "children":
        if copies_pages(
            timeline,
            None if finding.started_at_generation is None else finding.started_at_generation.low,
            finding.growth_bytes_per_generation.estimate,
        ):
            known = (*known, _COPY_ON_WRITE)
        if _can_scan_workers(history):
            known = (*known, _SCAN_WORKERS)
    if finding.unknown == "rarely_counted":
        known = (_TOO_FEW_LOOKS if history.ended else _NEXT_LOOK,)
    lines = tuple(dict.fromkeys((*known, *more)))
    return replace(finding, advice=lines[: MAX_LINES + len(more)])


def _can_scan_workers(history: RunHistory) -> bool:
    """Return True if the client can scan workers but has not done so."""
    known = history.environment
    is_able = "python" in known and str(known.get("platform", "")).startswith("Linux")
    return is_able and "watched_from_outside" not in known and not scans_of(history)


def _to_be_counted(finding: Finding, history: RunHistory, timeline: Timeline) -> list[str]:
    """Return advice on how to identify what grows.

    Advice is given only if types were counted, no counted type explains the growth, and nothing was declared.
    """
    counted = any(name.startswith("type.") and name.endswith(".count") for name in timeline.series)
    declared = any(history.events_of(kind) for kind in _DECLARES) or history.expectations
    named = finding.kind != "native" or finding.suspects
    if named or not counted or declared or tracked_names(timeline):
        return []
    if history.unit in UNITS_OF_TIME:
        return [
            "Nothing that could explain the growth is watched. Pass the classes that may grow to "
            "leakline.init(watch=[…]), and track the items of a container or of a C object with run.track(name, it)."
        ]
    where = f"in {finding.phase_path or finding.phase}" if finding.phase else "in the loop"
    return [
        "Nothing that could explain the growth is watched. To count all types at the next phase end, call "
        f"run.census() {where}. To count a class at every phase end, call leakline.init(watch=[…]). To count the items "
        "of a container or of a C object, call run.track(name, it)."
    ]


def _rises(timeline: Timeline, series: str) -> bool:
    if not timeline.has(series) or not timeline.generations:
        return False
    points = timeline.points(series, newest=LOOK_BACK)
    return (
        count_growth(*points, timeline.generations[0], timeline.spacing(len(timeline))) is not None
    )
