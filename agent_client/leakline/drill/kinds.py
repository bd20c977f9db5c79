"""What a drill can plant, and what is right to say about it: known by planting, never taken from a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

PHASES: Final = ("collect", "train", "evaluate")
# Enough to confirm by memory alone what grows from the first generation on.
GENERATIONS: Final = 30
# (what was planted, what it may be called as well) -> why that is as right. Any other kind is wrong, whatever it names.
ALIKE: Final[Mapping[tuple[str, str], str]] = {
    ("objects", "container"): "what piles up, told by what keeps it: its entries are these objects",
    ("container", "objects"): "what piles up, told by what it is: these objects are its entries",
    (
        "objects",
        "count_contract",
    ): "more than were declared, told while nothing else is known of them",
    ("arrays", "container"): "the arrays, told by what keeps them: its entries are these arrays",
}


def answers_for(kind: str) -> tuple[str, ...]:
    """The kinds of finding that are right where this one was planted, itself first."""
    return kind, *(told for planted, told in ALIKE if planted == kind)


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing to plant, in a phase, in every ``every``-th generation from ``first`` on.

    ``plant``: the class in `small_training` that does it. ``answer``: the kind of finding that is right.
    ``types`` and ``holders``: what piles up and what keeps it, by their last parts, any of which is right; empty
    where nothing in Python knows of the memory. ``beside``: names of what rightly grows with it. ``needs``: packages
    without which it cannot be planted. ``in_phases``: whether it is read after each phase; else the right answer is
    no phase. A healthy kind has no answer.
    """

    name: str
    summary: str
    plant: str
    phase: str = "collect"
    answer: str = ""
    types: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    first: int = 0
    every: int = 1
    needs: tuple[str, ...] = ()
    in_phases: bool = True

    @property
    def leaks(self) -> bool:
        return bool(self.answer)

    @property
    def answers(self) -> tuple[str, ...]:
        return answers_for(self.answer) if self.answer else ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.types + self.holders

    def due(self, generation: int) -> bool:
        """Whether something is planted in this generation."""
        return generation >= self.first and (generation - self.first) % self.every == 0

    @property
    def missing(self) -> tuple[str, ...]:
        """What it needs and is not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


def _by_name(kinds: Iterable[Kind]) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


LEAKING: Final = _by_name((
    Kind(
        "history", "a history of records that is never cut", "held.History",
        answer="container", types=("dict", "bytes"), holders=("History.records",),
    ),
    Kind(
        "instances", "environments that a registry keeps", "held.Registry",
        answer="objects", types=("Environment",), holders=("Registry.environments",),
    ),
    Kind(
        "broken_count", "the same, with a declared count that they break", "held.DeclaredRegistry",
        answer="objects", types=("Environment",), holders=("DeclaredRegistry.environments",),
    ),
    Kind(
        "cached_method", "a cached method whose cache keeps every self", "held.Folds", phase="evaluate",
        answer="objects", types=("FeatureExtractor",),
        holders=("FeatureExtractor.features", "FeatureExtractor.features.<cache>"),
    ),
    Kind(
        "closures", "callbacks whose closures hold a batch each", "held.Callbacks", phase="train",
        answer="objects", types=("function", "cell", "bytearray"), holders=("Callbacks.callbacks",),
    ),
    Kind(
        "tracebacks", "errors whose tracebacks hold the locals of what failed", "held.Errors",
        answer="objects", types=("EpisodeFailed", "traceback", "frame", "bytearray"), holders=("Errors.errors",),
    ),
    Kind(
        "arrays", "predictions kept as NumPy arrays", "held.Predictions", phase="evaluate",
        answer="arrays", types=("ndarray",), holders=("Predictions.predictions",), needs=("numpy",),
    ),
    Kind(
        "graph", "losses kept as torch tensors with their graph", "tensors.Losses", phase="train",
        answer="graph", types=("Tensor", "MseLossBackward0"), holders=("Losses.losses",),
        needs=("torch",),
    ),
    Kind(
        "cycles", "reference cycles while the collector is off", "cycles.Uncollected",
        answer="cyclic_garbage", types=("Node",), holders=("<cyclic garbage>",),
    ),
    Kind(
        "figures", "matplotlib figures that are not closed", "outside.Figures", phase="evaluate",
        answer="objects", types=("Figure", "FigureManagerBase", "FigureCanvasAgg"), holders=("Gcf.figs",),
        needs=("matplotlib", "numpy"),
    ),
    Kind(
        "files", "files that are not closed, with their write buffers", "outside.Files",
        answer="objects", types=("BufferedWriter",), holders=("Files.files",),
    ),
    Kind(
        "threads", "threads that wait for ever, with a buffer each", "outside.Threads",
        answer="objects", types=("Reader",), holders=("Threads.readers", "threading._active"),
    ),
    Kind(
        "native", "memory taken in C that no Python object knows of", "outside.Native",
        answer="native",
    ),
    Kind(
        "pinned_holes", "small survivors behind which the C allocator keeps what was freed", "outside.PinnedHoles",
        answer="allocator_retained", beside=("bytearray", "PinnedHoles.headers"),
    ),
    Kind("children", "a child process that grows", "outside.Child", answer="children", in_phases=False),
    Kind(
        "late_start", "environments that are kept from generation 12 on", "held.Registry",
        answer="objects", types=("Environment",), holders=("Registry.environments",), first=12,
    ),
    Kind(
        "every_third", "environments that are kept every third generation", "held.RareRegistry", phase="evaluate",
        answer="objects", types=("Environment",), holders=("RareRegistry.environments",), every=3,
    ),
))  # fmt: skip

HEALTHY: Final = _by_name((
    Kind("flat", "a training that keeps nothing", "bounded.Nothing"),
    Kind("replay_buffer", "a declared replay buffer that fills and stays full", "bounded.ReplayBuffer"),
    Kind("bounded_cache", "a cache with a bound, full after a few generations", "bounded.Lookups"),
    Kind("collected_cycles", "reference cycles that the collector frees", "cycles.Collected"),
    Kind("one_step", "one large object, loaded once and kept", "bounded.OneStep", first=10, every=1_000_000),
    Kind("sawtooth", "events gathered for five generations, then written and dropped", "bounded.Sawtooth"),
))  # fmt: skip

KINDS: Final = {**LEAKING, **HEALTHY}
# Without a kind: a leak with a name, one without, and a store that fills rightly.
REPRESENTATIVE: Final = ("instances", "native", "replay_buffer")
