"""The catalogue of planted leaks: programs of the suite and switches of the examples, with the expected findings.

The findings are those that the author of a program would state; nothing was learned from a tool. Sizes of programs are
sums of allocations, computed from the constants at their top. They were once compared with the kernel's figures per
generation and agreed within 15 %, except for `activation_hooks`, where the allocator adds up to 17 % in some runs. The
effect of the switches of the examples is measured by `tests/leaks/measure.py`. `leakline drill` has its three leaks in
`KINDS`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from leakline.cli.commands.drill import PlantedLeak

PROGRAMS: Final = Path(__file__).with_name("programs")
GENERATIONS: Final = 30
# Generations in which a leak and its twin are identical.
SAME_GENERATIONS: Final = 10
MIB: Final = 2**20
# Name of a count of `tests/leaks/measure.py`.
GRAPHS: Final = "tensors with a graph"


@dataclass(frozen=True, kw_only=True)
class Planted(PlantedLeak):
    """One leak of a program or of a switch.

    ``size`` is in bytes per generation, as an expression of constants of the program or as measured. ``counted`` grows
    by ``count`` per generation, where that was measured. ``kinds`` follow from the types unless given: objects may be
    reported as such, as their container, as their declared count, or as the type of most of their bytes.
    """

    size: str | float
    counted: str = ""
    count: float = 0.0

    def __post_init__(self) -> None:
        if self.kinds:
            return
        found = ["objects", "container", "count_contract"]
        if {"Tensor", "Parameter"} & set(self.types):
            found.append("tensors")
        if any(name.endswith("Backward0") for name in self.types):
            found.append("graph")
        if "ndarray" in self.types:
            found.append("arrays")
        object.__setattr__(self, "kinds", tuple(found))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program with a leaking variant and a healthy twin, or a switch of an example.

    ``kind`` is the cause in common words. ``truth`` is the expected finding as a sentence; for a switch it is its
    docstring. ``twin`` describes the healthy variant. ``references`` are public threads about the same cause. A
    ``held_back`` case is not looked at before the end. A case that ``matters`` must at least be suspected. ``worst``
    is the highest status allowed.
    """

    name: str
    kind: str
    planted: tuple[Planted, ...]
    truth: str = ""
    twin: str = "the example without the switch"
    references: tuple[str, ...] = ()
    held_back: bool = False
    matters: bool = True
    worst: str = "confirmed"

    @property
    def program(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    @property
    def bytes_per_generation(self) -> int:
        """Bytes per generation of all its leaks together."""
        return sum(map(self.bytes_of, self.planted))

    def bytes_of(self, planted: Planted) -> int:
        """Return the bytes per generation of one of its leaks."""
        if not isinstance(planted.size, str):
            return round(planted.size)
        return round(_value(ast.parse(planted.size, mode="eval").body, constants(self.name)))


@cache
def constants(name: str) -> dict[str, float]:
    """Return the numeric constants at the top of a program without importing it."""
    found: dict[str, float] = {}
    for line in ast.parse((PROGRAMS / f"{name}.py").read_text()).body:
        if not isinstance(line, ast.Assign):
            continue
        names, values = _flat(line.targets[0]), _flat(line.value)
        for target, value in zip(names, values, strict=False):
            if isinstance(target, ast.Name) and _is_number(value):
                found[target.id] = _value(value, found)
    return found


def _flat(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _is_number(node: ast.AST) -> bool:
    """Return True for an expression of numbers and previously defined constants."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Name) and node.id.isupper()


def _value(node: ast.expr, names: dict[str, float]) -> float:
    code = compile(ast.Expression(node), "<constant>", "eval")
    return float(eval(code, {"__builtins__": {}}, dict(names)))


# One third is held back, drawn once with random.Random(20261122).sample(sorted(names), len(names) // 3). Of these,
# allocator_survivors is no longer held back: freed memory and the objects around it became one finding with its help.
CASES: Final = (
    Case(
        name="replay_past_capacity",
        kind="replay buffer that grows beyond its capacity",
        references=("stable-baselines#716", "hanabi_SAD#14"),
        truth="From generation 10, when the declared capacity is reached, collect appends 1,200 more transitions "
        "per generation to ReplayBuffer.storage instead of overwriting the oldest.",
        planted=(
            Planted(
                phases=("collect",),
                types=("Transition", "ndarray"),
                holders=("ReplayBuffer.storage", "replay.storage", "replay"),
                size="TRANSITIONS * TRANSITION_BYTES",
                first=(0, 10),
            ),
        ),
        twin="fills a declared buffer in ten generations, then overwrites",
        held_back=True,
    ),
    Case(
        name="episode_dict",
        kind="dictionary by (agent, episode) that is never cleared",
        references=("ray#9964", "ray PR #15783", "ray PR #15815"),
        truth="sample adds 96 episode records per generation to Sampler.records and removes none.",
        planted=(
            Planted(
                phases=("sample",),
                types=("EpisodeRecord", "ndarray"),
                holders=("Sampler.records", "sampler.records"),
                size="AGENTS * EPISODES * STEPS * OBSERVATION * 4",
            ),
        ),
        twin="forgets records that are ten generations old",
        held_back=True,
    ),
    Case(
        name="past_populations",
        kind="replaced populations kept",
        truth="evolve_population puts the replaced population, 24 agents, into Evolution.hall_of_fame forever.",
        planted=(
            Planted(
                phases=("evolve_population",),
                types=("Agent", "ndarray"),
                holders=("Evolution.hall_of_fame", "evolution.hall_of_fame"),
                size="POPULATION * HIDDEN * (OBSERVATION + ACTIONS) * 4",
            ),
        ),
        twin="a hall of fame of ten populations",
    ),
    Case(
        name="dataset_cache",
        kind="dataset cache without a bound",
        truth="load decodes 40 new samples per generation, and CachedDataset.decoded keeps them all.",
        planted=(
            Planted(
                phases=("load",),
                types=("ndarray",),
                holders=("CachedDataset.decoded", "dataset.decoded", "decoded"),
                size="SAMPLES * HEIGHT * WIDTH * CHANNELS * 4",
            ),
        ),
        twin="a least-recently-used cache of 400 samples, full after ten generations",
    ),
    Case(
        name="shape_cache",
        kind="cache per input shape",
        references=("pytorch#27971", "pytorch#29893", "pytorch#32037", "pytorch#98688", "jax#2072"),
        truth="Each generation trains on six new lengths; PositionTables.tables keeps a table of each.",
        planted=(
            Planted(
                phases=("train",),
                types=("ndarray",),
                holders=("PositionTables.tables", "positions.tables"),
                size="SHAPES * (SHORTEST + LENGTHS / 2) * WIDTH * 4",
            ),
        ),
        twin="a warm-up: batches are padded to 60 lengths, all of them known after ten generations",
        held_back=True,
    ),
    Case(
        name="vocabulary_growth",
        kind="vocabulary that learns every identifier",
        truth="tokenize enters 16,000 words per generation that never come again into the two tables of Vocabulary.",
        planted=(
            Planted(
                phases=("tokenize",),
                types=("str", "int"),
                holders=(
                    "Vocabulary.numbers",
                    "Vocabulary.counts",
                    "vocabulary.numbers",
                    "vocabulary.counts",
                ),
                size="WORDS * WORD_BYTES",
            ),
        ),
        twin="a language of 160,000 words, all of them known after ten generations",
        held_back=True,
    ),
    Case(
        name="lru_cached_method",
        kind="lru_cache on a method keeps self",
        references=("transformers#45412", "seer PR #2512", "botorch PR #1650", "GEMDAT#111"),
        truth="Every fold makes a FeatureExtractor of 3 MiB; the cache of its method features has self in its keys "
        "and no bound, so none is freed.",
        planted=(
            Planted(
                phases=("prepare_fold", "train"),
                types=("FeatureExtractor", "ndarray"),
                holders=("FeatureExtractor.features", "functools._lru_cache_wrapper"),
                size="BASIS_ROWS * BASIS_COLUMNS * 4 + DAYS * BASIS_COLUMNS * 4",
            ),
        ),
        twin="the same cache with a bound that holds ten extractors",
    ),
    Case(
        name="figures_open",
        kind="figures that are not closed",
        references=(
            "alphalens PR #241",
            "OCVP PR #3",
            "Multilingual-TTS#19",
            "matplotlib#8519",
            "matplotlib#23701",
        ),
        truth="plot opens one figure of 800 x 600 pixels per generation, and pyplot keeps each until it is closed.",
        planted=(
            Planted(
                phases=("plot",),
                types=("Figure", "FigureManagerBase", "FigureCanvasAgg"),
                holders=("Gcf.figs", "matplotlib._pylab_helpers.Gcf.figs"),
                size="FIGURE_BYTES",
            ),
        ),
        twin="draws into ten figures in turn",
    ),
    Case(
        name="logging_handlers",
        kind="logging handlers added again for each trial",
        references=("openhtf#144", "paddle-python-sdk#144", "NASLib PR #31", "SCALEX PR #5"),
        truth="set_up_trial adds a TrialHandler to the logger and leaves the old ones; each keeps the 1,600 records "
        "that train logged while its trial ran.",
        planted=(
            Planted(
                phases=("train", "set_up_trial"),
                types=("LogRecord", "TrialHandler", "dict", "str"),
                holders=("TrialHandler.records", "Logger.handlers", "LOGGER.handlers"),
                size="RECORDS * RECORD_BYTES",
            ),
        ),
        twin="keeps the handlers of ten trials",
    ),
    Case(
        name="predictions_kept",
        kind="evaluation that keeps all predictions",
        references=(
            "transformers#7232",
            "transformers#8476",
            "transformers#10722",
            "transformers PR #7767",
        ),
        truth="evaluate concatenates all predictions and stores them by generation in Evaluator.predictions.",
        planted=(
            Planted(
                phases=("evaluate",),
                types=("ndarray",),
                holders=("Evaluator.predictions", "evaluator.predictions"),
                size="BATCHES * BATCH * CLASSES * 4",
            ),
        ),
        twin="keeps the predictions of ten generations",
    ),
    Case(
        name="step_outputs",
        kind="step outputs that a later stage no longer drops",
        references=("lightning#1510", "lightning#4556", "lightning#8583", "lightning#14270"),
        truth="Until generation 9 the outputs of five generations are gathered and dropped; from generation 10 the "
        "fine-tuning stage gathers them in Module.step_outputs during train and never drops them.",
        planted=(
            Planted(
                phases=("train",),
                types=("ndarray", "dict"),
                holders=("FineTuning.step_outputs", "Module.step_outputs", "module.step_outputs"),
                size="STEPS * BATCH * CLASSES * 4",
                first=(10, 10),
            ),
        ),
        twin="a sawtooth: gathered for five generations, then dropped, to the end",
        held_back=True,
    ),
    Case(
        name="sawtooth_rising_floor",
        kind="sawtooth whose floor rises",
        truth="Rollouts are dropped every third generation, but ten of each generation's thirty, put into "
        "RolloutStorage.elites by collect, stay.",
        planted=(
            Planted(
                phases=("collect",),
                types=("ndarray",),
                holders=("RolloutStorage.elites", "storage.elites"),
                size="ELITES * STEPS * OBSERVATION * 4",
            ),
        ),
        twin="the same sawtooth on elites of ten generations",
    ),
    Case(
        name="shared_memory_epochs",
        kind="shared-memory segments per epoch",
        references=("pytorch#17499", "lightning#2352"),
        truth="publish makes a shared-memory segment of 3 MiB per generation, listed in BatchPublisher.segments and "
        "neither closed nor unlinked.",
        planted=(
            Planted(
                phases=("publish",),
                types=("SharedMemory",),
                holders=("BatchPublisher.segments", "publisher.segments"),
                size="ROWS * COLUMNS * 4",
                kinds=("shared_memory", "objects", "container"),
            ),
        ),
        twin="unlinks segments that are ten generations old",
    ),
    Case(
        name="helper_processes",
        kind="helper processes that are never stopped",
        references=("pytorch#973", "pytorch#11201", "pytorch#65198", "olmoearth PR #563"),
        truth="start_shard forks a helper per generation that holds a shard and waits on its pipe forever; the "
        "training process itself stays as it is.",
        planted=(
            Planted(
                phases=("start_shard", "train"),
                types=("ForkProcess", "Process", "Connection"),
                holders=("ShardHelpers.helpers", "helpers.helpers"),
                size="ROWS * COLUMNS * 4 + PROCESS_BYTES",
                kinds=("children", "objects", "container"),
            ),
        ),
        twin="keeps ten helpers and stops the oldest",
    ),
    Case(
        name="open_episode_files",
        kind="files that are not closed",
        references=("pytorch#973", "pytorch#11201", "pytorch#65198"),
        truth="record opens six files per generation with a write buffer of 512 KiB each; EpisodeRecorder.files "
        "keeps them open.",
        planted=(
            Planted(
                phases=("record",),
                types=("BufferedWriter",),
                holders=("EpisodeRecorder.files", "recorder.files"),
                size="EPISODES * STEPS * OBSERVATION * 4",
            ),
        ),
        twin="closes all but the latest 60 files",
    ),
    Case(
        name="finished_futures",
        kind="finished futures kept",
        references=("py-ipv8 PR #702", "cpython#85865"),
        truth="collect submits 16 episodes per generation, and RolloutPool.submitted keeps their futures with the "
        "results.",
        planted=(
            Planted(
                phases=("collect",),
                types=("Future", "ndarray"),
                holders=("RolloutPool.submitted", "pool.submitted"),
                size="EPISODES * STEPS * OBSERVATION * 4",
            ),
        ),
        twin="keeps the futures of ten generations",
        held_back=True,
    ),
    Case(
        name="weakref_finalizers",
        kind="weak-reference callbacks that pile up",
        references=("ha-life360#101", "cpython#85865"),
        truth="simulate registers a finalizer on the one Simulator for each of 12 episodes; the finalizer's bound "
        "method keeps the episode until the simulator dies.",
        planted=(
            Planted(
                phases=("simulate",),
                types=("Episode", "finalize", "ndarray"),
                holders=("finalize._registry", "Simulator.closing", "simulator.closing"),
                size="EPISODES * FRAMES * PIXELS * 4",
            ),
        ),
        twin="detaches all but the latest 120 finalizers",
    ),
    Case(
        name="callback_closures",
        kind="closures in callbacks capture batches",
        truth="schedule adds a callback per generation to Trainer.callbacks whose closure holds the batch that train "
        "made.",
        planted=(
            Planted(
                phases=("schedule", "train"),
                types=("function", "ndarray", "cell"),
                holders=("Trainer.callbacks", "trainer.callbacks"),
                size="ROWS * INPUTS * 4",
            ),
        ),
        twin="drops callbacks after ten generations",
    ),
    Case(
        name="reader_threads",
        kind="threads that never end",
        references=("decord#157", "decord#208", "decord#279", "Open-Sora PR #526"),
        truth="open_videos starts two decoding threads per generation; each keeps its frames in a local variable "
        "while it waits for a request that nobody makes.",
        planted=(
            Planted(
                phases=("open_videos",),
                types=("DecodeThread", "Thread", "ndarray"),
                holders=(
                    "VideoDataset.readers",
                    "dataset.readers",
                    "threading._active",
                    "run.frames",
                ),
                size="VIDEOS * FRAMES * PIXELS * 4",
            ),
        ),
        twin="a pool of 20 readers, used again in turn",
        held_back=True,
    ),
    Case(
        name="forked_loader",
        kind="forked loader workers copy pages on write",
        references=(
            "pytorch#13246",
            "pytorch#20433",
            "pytorch#5902",
            "pytorch PR #191555",
            "CenterPoint#274",
        ),
        truth="Two workers read 2,000 further samples per generation; counting references copies the pages they "
        "share with the parent, whose own memory is flat. It would end with the dataset, 114 MB in two workers.",
        planted=(
            Planted(
                phases=("load",),
                types=(),
                holders=None,
                size="WORKERS * SAMPLES_READ * SAMPLE_BYTES",
                kinds=("children",),
            ),
        ),
        twin="reads the same third of the dataset again and again: all its pages are copied after ten generations",
    ),
    Case(
        name="mapped_dataset",
        kind="mapped data copied into memory",
        references=("nanoGPT#287", "nanoGPT PR #428", "numpy#21292", "datasets#4883", "vision#619"),
        truth="read_shard copies one shard of 3 MB per generation out of the mapped file into ShardedDataset.copies.",
        planted=(
            Planted(
                phases=("read_shard",),
                types=("ndarray",),
                holders=("ShardedDataset.copies", "dataset.copies"),
                size="ROWS * COLUMNS * 4",
            ),
        ),
        twin="copies ten shards and then only touches the map: the page cache grows on, nothing else does",
    ),
    Case(
        name="cycles_uncollected",
        kind="reference cycles with collection switched off",
        references=("pandas#44983", "optuna#1178", "optuna#3050", "optuna PR #377"),
        truth="search leaves a tree of 320 nodes per generation whose nodes point to their parents and children; "
        "collection is off, so they stay, held by nothing but each other.",
        planted=(
            Planted(
                phases=("search",),
                types=("SearchNode", "ndarray"),
                holders=None,
                size="NODES * NODE_BYTES",
                kinds=("cyclic_garbage",),
            ),
        ),
        twin="a sawtooth: collects every tenth generation",
        held_back=True,
    ),
    Case(
        name="allocator_survivors",
        kind="freed memory that the allocator cannot return to the system",
        references=(
            "miloco PR #459",
            "synalinks PR #102",
            "omi#6938",
            "hypha PR #976",
            "gcli2api PR #395",
        ),
        truth="play cuts 280 messages of 12,000 bytes per generation down to headers of 640, which Journal.headers "
        "keeps; what is freed lies between headers, in holes too small for the next messages.",
        planted=(
            Planted(
                phases=("play",),
                types=("bytearray",),
                holders=("Journal.headers", "journal.headers"),
                size="STEPS * MESSAGE",
                kinds=("allocator_retained", "objects", "container"),
            ),
        ),
        twin="keeps the headers of ten generations; the older holes join and are used again",
    ),
    Case(
        name="event_buffer",
        kind="summary writer that never flushes",
        references=("tensorboardX#116", "pytorch#61186", "pokemonshowdown-ai#358", "tfjs#7432"),
        truth="log adds 700 histogram events per generation to SummaryWriter.events, which is never flushed.",
        planted=(
            Planted(
                phases=("log",),
                types=("HistogramEvent", "ndarray"),
                holders=("SummaryWriter.events", "writer.events"),
                size="EVENTS * EVENT_BYTES",
            ),
        ),
        twin="a sawtooth: flushes every tenth generation",
    ),
    Case(
        name="slow_consumer",
        kind="queue whose consumer is slower than its producer",
        references=("wandb#354",),
        truth="enqueue_uploads puts 12 checkpoints of 400 KiB per generation into Uploader.waiting, of which four "
        "are taken out.",
        planted=(
            Planted(
                phases=("enqueue_uploads",),
                types=("ndarray",),
                holders=(
                    "Uploader.waiting.queue",
                    "uploader.waiting.queue",
                    "Queue.queue",
                    "Uploader.waiting",
                ),
                size="(CHECKPOINTS - UPLOADS) * ROWS * COLUMNS * 4",
            ),
        ),
        twin="the queue holds 84 and drops the oldest",
    ),
    Case(
        name="database_sessions",
        kind="a session per step that is never closed",
        truth="store_metrics opens five in-memory databases per generation, with 300 rows each, and "
        "MetricStore.sessions keeps the connections open.",
        planted=(
            Planted(
                phases=("store_metrics",),
                types=("Connection",),
                holders=("MetricStore.sessions", "store.sessions"),
                size="STEPS * ROWS * ROW_BYTES",
            ),
        ),
        twin="a pool of 50 connections",
    ),
    Case(
        name="late_teacher_targets",
        kind="leak that starts late",
        truth="Distillation starts at generation 12 with a step of 6 MB for the teacher; from then on train keeps the "
        "targets of every generation in Distiller.targets.",
        planted=(
            Planted(
                phases=("train",),
                types=("ndarray",),
                holders=("Distiller.targets", "distiller.targets"),
                size="ROWS * CLASSES * 4",
                first=(12, 13),
            ),
        ),
        twin="one step at generation 12: the teacher and one set of targets",
    ),
    Case(
        name="every_third_generation",
        kind="leak every third generation",
        truth="evaluate, which runs every third generation, records three videos of 2.7 MiB into VideoLog.videos and "
        "removes none.",
        planted=(
            Planted(
                phases=("evaluate",),
                types=("ndarray",),
                holders=("VideoLog.videos", "log.videos"),
                size="EPISODES * FRAMES * HEIGHT * WIDTH / EVALUATE_EVERY",
            ),
        ),
        twin="keeps 12 videos, which are there after the fourth evaluation",
    ),
    Case(
        name="two_leaks",
        kind="two leaks at once",
        truth="collect keeps 20 trajectories per generation in Diagnostics.trajectories, and train 12 gradients in "
        "Diagnostics.gradients.",
        planted=(
            Planted(
                phases=("collect",),
                types=("ndarray",),
                holders=("Diagnostics.trajectories", "diagnostics.trajectories"),
                size="TRAJECTORIES * STEPS * OBSERVATION * 4",
            ),
            Planted(
                phases=("train",),
                types=("ndarray",),
                holders=("Diagnostics.gradients", "diagnostics.gradients"),
                size="GRADIENTS * OBSERVATION * HIDDEN * 4",
            ),
        ),
        twin="both keep ten generations",
    ),
    Case(
        name="nested_augmentation",
        kind="leak in a nested phase",
        references=("tensorflow#31175", "jax#7930"),
        truth="augment, inside train, caches every augmented image by image and random angle in Augmenter.cache; "
        "hardly any key comes twice.",
        planted=(
            Planted(
                phases=("augment", "train/augment", "train"),
                types=("ndarray",),
                holders=("Augmenter.cache", "augmenter.cache"),
                size="IMAGES * SIDE * SIDE * 4",
            ),
        ),
        twin="a cache of 480 images, full after ten generations",
    ),
    Case(
        name="between_phases",
        kind="leak between the phases",
        truth="After the last phase of each generation the loop writes an entry with all outputs into Diary.entries.",
        planted=(
            Planted(
                phases=(None,),
                types=("DiaryEntry", "ndarray"),
                holders=("Diary.entries", "diary.entries"),
                size="ROWS * OUTPUTS * 4",
            ),
        ),
        twin="a diary of ten entries",
        held_back=True,
    ),
    Case(
        name="prefetch_thread",
        kind="leak in another thread's phase",
        references=("decord#157",),
        truth="The prefetching thread, in its phase prefetch, keeps the ten batches it decodes per generation in "
        "Prefetcher.decoded, while the main thread is in train.",
        planted=(
            Planted(
                phases=("prefetch",),
                types=("ndarray",),
                holders=("Prefetcher.decoded", "prefetcher.decoded"),
                size="BATCHES * ROWS * COLUMNS * 4",
            ),
        ),
        twin="keeps 100 decoded batches",
    ),
    Case(
        name="native_bodies",
        kind="native memory that is never freed",
        references=("gym#2062", "gym#2094", "gym#2155", "gym PR #1509", "gym PR #2096"),
        truth="reset creates 400 bodies of 8 KiB in C per generation; those of old worlds are never freed, and "
        "nothing knows their addresses.",
        planted=(
            Planted(
                phases=("reset",),
                types=(),
                holders=None,
                size="BODIES * BLOCK_BYTES",
                first=(0, 10),
                kinds=("native",),
            ),
        ),
        twin="frees the bodies of worlds that are ten generations old",
        held_back=True,
    ),
    Case(
        name="arrays_held_by_c",
        kind="arrays held by a C extension",
        references=("gym#2062", "pandas#21353"),
        truth="simulate hands 20 arrays per generation to an extension that takes a reference to each and never "
        "gives it back; no Python object refers to them.",
        planted=(
            Planted(
                phases=("simulate",),
                types=("ndarray",),
                holders=None,
                size="BUFFERS * ROWS * COLUMNS * 4",
                kinds=("arrays",),
            ),
        ),
        twin="the extension releases all but the latest 200",
        held_back=True,
    ),
    Case(
        name="retraced_functions",
        kind="functions compiled again for each Python value",
        references=(
            "tensorflow#31175",
            "tensorflow#33009",
            "Mava#346",
            "zfit PR #421",
            "addons#807",
        ),
        truth="trace compiles 4,000 small functions per learning rate, which is a new one each generation; "
        "Tracer.traced keeps them.",
        planted=(
            Planted(
                phases=("trace",),
                types=("function", "code"),
                holders=("Tracer.traced", "tracer.traced"),
                size="OPERATIONS * OPERATION_BYTES",
            ),
        ),
        twin="a warm-up: the schedule comes back to the same ten rates",
    ),
    Case(
        name="episode_history",
        kind="episode history that a reset does not clear",
        truth="collect adds 1,600 steps per generation to the histories of four environments, TradingEnvironment."
        "history, which reset leaves as they are.",
        planted=(
            Planted(
                phases=("collect",),
                types=("dict", "ndarray"),
                holders=("TradingEnvironment.history", "environments.history"),
                size="ENVIRONMENTS * STEPS * STEP_BYTES",
            ),
        ),
        twin="histories of ten episodes",
    ),
    Case(
        name="checkpoint_copies",
        kind="deep copies of checkpoints kept",
        truth="checkpoint deep-copies the model each generation, and CheckpointManager.checkpoints keeps all copies.",
        planted=(
            Planted(
                phases=("checkpoint",),
                types=("Checkpoint", "Network", "ndarray"),
                holders=("CheckpointManager.checkpoints", "manager.checkpoints"),
                size="HIDDEN * (INPUTS + OUTPUTS) * 4",
            ),
        ),
        twin="keeps the ten best",
    ),
    Case(
        name="kept_losses",
        kind="losses kept with their graph",
        references=(
            "horovod PR #641",
            "packnet-sfm PR #51",
            "tntorch PR #19",
            "labelmodels#4",
            "ML2021#2",
            "pytorch-pfn-extras PR #49",
            "lambeq PR #251",
        ),
        truth="validate appends eight losses per generation to LossLog.losses as tensors with their graph, which "
        "holds the activations.",
        planted=(
            Planted(
                phases=("validate",),
                types=("Tensor", "MseLossBackward0"),
                holders=("LossLog.losses", "log.losses"),
                size="BATCHES * BATCH * (INPUTS + HIDDEN + 16) * 4",
            ),
        ),
        twin="keeps graphs during a warm-up of ten generations, and plain numbers from then on",
    ),
    Case(
        name="activation_hooks",
        kind="forward hooks that hold activations",
        references=(
            "pytorch#82528",
            "pytorch PR #82788",
            "pytorch#46386",
            "opacus#176",
            "zennit#11",
            "zennit PR #13",
        ),
        truth="probe registers three forward hooks per generation and removes none; the modules keep the hooks, the "
        "hooks their ActivationProbe, and that the activations of a batch.",
        planted=(
            Planted(
                phases=("probe",),
                types=("ActivationProbe", "Tensor"),
                holders=("Linear._forward_hooks", "ActivationProbe.activations"),
                size="PROBED_LAYERS * BATCH * HIDDEN * 4",
            ),
        ),
        twin="removes the hooks of probes that are ten generations old",
    ),
    Case(
        name="optimizer_groups",
        kind="parameter groups of replaced layers kept by the optimizer",
        truth="begin_task adds the parameters of a new head, with two moments for each, to the optimizer and leaves "
        "those of the old heads there; the moments fill when train takes its first step. Three quarters of the "
        "growth are tensors, the rest is a freed gradient that lies between them.",
        planted=(
            Planted(
                phases=("train", "begin_task"),
                types=("Parameter", "Tensor"),
                holders=(
                    "Adam.moments",
                    "Adam.parameters",
                    "optimizer.moments",
                    "optimizer.parameters",
                ),
                size="TENSORS_PER_WEIGHT * (HIDDEN + 1) * CLASSES * 4",
            ),
        ),
        twin="the stream of tasks ends after ten",
        held_back=True,
    ),
    Case(
        name="metric_states",
        kind="metric states that are never reset",
        references=(
            "lightning#4556",
            "lightning#8583",
            "hydra-template#458",
            "geo-deep-learning#582",
        ),
        truth="validate appends the predictions of ten batches per generation to CalibrationError.predictions, and "
        "nothing resets the metric.",
        planted=(
            Planted(
                phases=("validate",),
                types=("Tensor",),
                holders=(
                    "CalibrationError.predictions",
                    "CalibrationError.targets",
                    "metric.predictions",
                    "metric.targets",
                ),
                size="BATCHES * BATCH * (CLASSES * 4 + 8)",
            ),
        ),
        twin="a sawtooth: the metric is reset every tenth generation",
    ),
    Case(
        name="traceback_tensors",
        kind="tracebacks whose frames hold tensors",
        references=(
            "pytorch#27600",
            "pytorch#18853",
            "pytorch#82218",
            "trl PR #5681",
            "trl PR #5776",
        ),
        truth="Two steps of train fail per generation; Trainer.errors keeps the exceptions, and their tracebacks keep "
        "the frames with batch and loss.",
        planted=(
            Planted(
                phases=("train",),
                types=("NotFinite", "traceback", "frame", "Tensor"),
                holders=("Trainer.errors", "trainer.errors"),
                size="FAILURES * (ROWS * INPUTS + ROWS / 10 * 128) * 4",
            ),
        ),
        twin="keeps the first 20 errors",
        held_back=True,
    ),
    Case(
        name="carried_hidden_state",
        kind="hidden state carried on with its graph",
        truth="rollout carries RecurrentPolicy.hidden on from generation to generation without detaching it, so that "
        "one tensor holds the graph of every step since the start, 14 more steps per generation. In addition to each "
        "step's inputs and state, its nodes pin a freed block of the size of the state.",
        planted=(
            Planted(
                phases=("rollout",),
                types=("Node", "Tensor", "TanhBackward0"),
                holders=("RecurrentPolicy.hidden", "policy.hidden"),
                size="STEPS * BATCH * (INPUTS + 2 * HIDDEN) * 4",
            ),
        ),
        twin="a sawtooth: the state is detached every tenth generation",
    ),
    Case(
        name="retained_gradients",
        kind="gradients that keep a graph",
        references=("pytorch#1346", "pytorch#4661", "pytorch#7343", "pytorch#51978", "wgan-gp#21"),
        truth="The last step of train_critic runs backward with create_graph; the parameters of the critic and their "
        "gradients hold each other through C++ when the critic is replaced.",
        planted=(
            Planted(
                phases=("train_critic", "new_critic"),
                types=("Parameter", "Tensor", "AccumulateGrad"),
                holders=None,
                size="(TENSORS_PER_WEIGHT * (INPUTS + HIDDEN) + ACTIVATIONS * BATCH) * HIDDEN * 4",
                kinds=("graph", "tensors"),
            ),
        ),
        twin="takes such steps during a warm-up of ten generations only",
    ),
    Case(
        name="task_buffers",
        kind="preallocated buffers of former tasks kept",
        truth="From generation 10 on, each generation is a new task, for which collect makes another DictReplayBuffer; "
        "MultiTaskLearner.buffers keeps all of them. Each has 24 MiB, of which a tenth is ever written.",
        planted=(
            Planted(
                phases=("collect",),
                types=("DictReplayBuffer", "ndarray", "dict"),
                holders=(
                    "MultiTaskLearner.buffers",
                    "learner.buffers",
                    "DictReplayBuffer.observations",
                    "DictReplayBuffer.next_observations",
                ),
                size="TRANSITIONS * TRANSITION_BYTES",
                first=(0, 10),
            ),
        ),
        twin="fills one buffer in ten generations, then overwrites",
    ),
    Case(
        name="augmented_cache",
        kind="cache whose key contains a seed",
        truth="load asks for 24 samples per generation by index and augmentation seed; CachedDataset.samples keeps "
        "each pair, although the entry does not depend on the seed. The first epoch, until generation 25, is the same "
        "in both variants.",
        planted=(
            Planted(
                phases=("load",),
                types=("ndarray",),
                holders=("CachedDataset.samples", "dataset.samples"),
                size="SAMPLES * SAMPLE_BYTES",
                first=(0, 25),
            ),
        ),
        twin="the same cache by index, which has the entire dataset after 25 generations",
        held_back=True,
    ),
    Case(
        name="rollout_queue",
        kind="queue without a maximum size",
        truth="A thread without a phase plays 14 rollouts per generation, of which learn takes six; the rest stays in "
        "the queue Actor.rollouts.",
        planted=(
            Planted(
                phases=("learn", "evaluate", "report", None),
                types=("Rollout", "ndarray"),
                holders=(
                    "Actor.rollouts.queue",
                    "actor.rollouts.queue",
                    "Actor.rollouts",
                    "actor.rollouts",
                    "Queue.queue",
                ),
                size="(PLAYED - LEARNED) * ROLLOUT_BYTES",
            ),
        ),
        twin="the queue holds 90 rollouts, after 12 generations; then the actor waits",
    ),
    Case(
        name="scoring_worker",
        kind="one child process that grows: a list of its module",
        truth="The forked worker adds the outputs of twelve members per generation to its list collected; the training "
        "process stays as it is.",
        planted=(
            Planted(
                phases=("score_population", None),
                types=(),
                holders=None,
                size="POPULATION * ROWS * OUTPUTS * 4",
                kinds=("children",),
            ),
        ),
        twin="a sawtooth: the worker clears the list every tenth generation",
        held_back=True,
    ),
    Case(
        name="persistent_loader",
        kind="one child process that grows: the dataset of a persistent worker",
        truth="The worker of the data loader keeps the 128 samples that it draws per generation in DrawnSamples.seen; "
        "the dataset of the training process stays empty.",
        planted=(
            Planted(
                phases=("train", None),
                types=(),
                holders=None,
                size="SAMPLES * FEATURES * 4",
                kinds=("children",),
            ),
        ),
        twin="the worker keeps the first 1,280 samples",
    ),
    Case(
        name="caption_worker",
        kind="one child process that grows: results, next to pages copied on write",
        truth="The worker keeps 2 MiB of embeddings per generation. During the first ten generations it also copies "
        "the pages of the captions that it reads, 0.25 MiB per generation, which ends with the captions.",
        planted=(
            Planted(
                phases=("embed", None),
                types=(),
                holders=None,
                size="CAPTIONS_READ * EMBEDDING * 4",
                kinds=("children",),
            ),
        ),
        twin="the captions are one array, and the worker keeps the embeddings of ten generations",
        held_back=True,
    ),
    Case(
        name="summed_loss",
        kind="running loss that keeps the graph of every loss",
        truth="validate adds eight losses per generation with their graph to the one tensor Validation.total, whose "
        "graph keeps the activations of all batches.",
        planted=(
            Planted(
                phases=("validate",),
                types=("Tensor", "Node", "AddBackward0"),
                holders=("Validation.total", "validation.total"),
                size="BATCHES * BATCH * (INPUTS + HIDDEN + OUTPUTS) * 4",
            ),
        ),
        twin="adds graphs during a warm-up of ten generations, and plain numbers from then on",
    ),
    Case(
        name="text_streams",
        kind="hidden state carried on with its graph: a dictionary of two tensors",
        truth="read_streams carries Streams.state on from generation to generation without detaching it; its two "
        "tensors hold the graph of every step since the start, 16 more steps per generation.",
        planted=(
            Planted(
                phases=("read_streams",),
                types=("Tensor", "Node", "MulBackward0", "AddBackward0"),
                holders=("Streams.state", "streams.state"),
                size="STEPS * STREAMS * (INPUTS + STATES * HIDDEN) * 4",
            ),
        ),
        twin="detaches the state in each generation from the tenth on",
        held_back=True,
    ),
    Case(
        name="closed_segments",
        kind="shared-memory segments that are closed and not unlinked",
        truth="publish makes a shared-memory segment of 2 MiB per generation and closes it; it stays in the system "
        "under its name, and no process maps it.",
        planted=(
            Planted(
                phases=("publish",),
                types=(),
                holders=None,
                size="SEGMENT_BYTES",
                kinds=("shared_memory",),
            ),
        ),
        twin="unlinks segments that are ten generations old",
    ),
    Case(
        name="metric_rows",
        kind="native memory of one handle: rows of a database in memory",
        truth="store_metrics inserts 450 rows per generation into the database of MetricDatabase.connection and "
        "deletes none; SQLite keeps its pages in C.",
        planted=(
            Planted(
                phases=("store_metrics",),
                types=(),
                holders=None,
                size="ROWS * ROW_BYTES",
                kinds=("native",),
            ),
        ),
        twin="deletes rows that are ten generations old",
        held_back=True,
    ),
    Case(
        name="recorded_features",
        kind="forward hooks whose closures hold outputs, made in one phase and kept by another",
        truth="register_hook adds a forward hook per generation to the encoder and removes none; the closure of each "
        "keeps the first 16 outputs of the next train.",
        planted=(
            Planted(
                phases=("train", "register_hook"),
                types=("Tensor", "function", "cell"),
                holders=(
                    "Linear._forward_hooks",
                    "encoder._forward_hooks",
                    "hook.features",
                    "features",
                ),
                size="RECORDED * BATCH * HIDDEN * 4",
            ),
        ),
        twin="removes hooks that are ten generations old",
    ),
    Case(
        name="novelty_memory",
        kind="memory of seen states whose key contains the step counter",
        truth="From generation 10 on the observation ends with the step counter, so that explore never comes back to a "
        "state and NoveltyMemory.seen gets 2,500 entries per generation.",
        planted=(
            Planted(
                phases=("explore",),
                types=("ndarray", "bytes"),
                holders=("NoveltyMemory.seen", "memory.seen"),
                size="STEPS * ENTRY_BYTES",
                first=(0, 10),
            ),
        ),
        twin="the counter is no part of the key; the memory saturates as its 12,000 states are seen",
        held_back=True,
    ),
)

# Kinds of programs that once got a wrong first answer. CASES measure Leakline, and nothing was tuned to the held-back
# ones; these are regression tests for each kind of wrong answer.
FIRST_ANSWERS: Final = (
    Case(
        name="frame_window",
        kind="a window of frames without maxlen",
        truth="collect appends 60 frames per generation to Frames.newest, a deque without maxlen.",
        planted=(
            Planted(
                phases=("collect",),
                types=("ndarray",),
                holders=("Frames.newest", "frames.newest", "frames"),
                size="FRAMES * FRAME_BYTES",
            ),
        ),
        twin="a deque with maxlen that is full after 25 generations",
    ),
    Case(
        name="encoded_samples",
        kind="a cache of a function without a limit",
        truth="load encodes 50 new samples per generation, and the cache of encode keeps them all.",
        planted=(
            Planted(
                phases=("load",),
                types=("ndarray",),
                holders=("encode.<cache>", "Loader.encode", "loader.encode"),
                size="SAMPLES * SAMPLE_BYTES",
            ),
        ),
        twin="a cache of 1,250 samples, full after 25 generations",
    ),
    Case(
        name="result_pool",
        kind="a pool that does not enforce its max_size",
        truth="evaluate adds 40 results per generation to Pool.results, also beyond its max_size of 400.",
        planted=(
            Planted(
                phases=("evaluate",),
                types=("Result", "ndarray"),
                holders=("Pool.results", "pool.results", "pool"),
                size="RESULTS * RESULT_BYTES",
                first=(0, 10),
            ),
        ),
        twin="a pool of 1,000 results that drops the oldest, full after 25 generations",
    ),
    Case(
        name="replay_arrays",
        kind="copies of episodes next to a preallocated buffer",
        truth="collect appends a copy of the episode to Replay.episodes, and fills arrays that have a fixed size.",
        planted=(
            Planted(
                phases=("collect",),
                types=("ndarray",),
                holders=("Replay.episodes", "replay.episodes", "replay"),
                size="EPISODE_BYTES",
            ),
        ),
        twin="a buffer that is full after 30 generations",
    ),
    Case(
        name="running_loss",
        kind="nodes of autograd graphs, without Python objects",
        truth="train adds the loss of each of 600 steps per generation to Trainer.total with its graph. Backward has "
        "freed what the graphs saved, and only their nodes stay.",
        planted=(
            Planted(
                phases=("train",),
                types=("Node",),
                holders=("Trainer.total", "trainer.total"),
                size="STEPS * GRAPH_BYTES",
                kinds=("graph",),
            ),
        ),
        twin="adds loss.item()",
    ),
    Case(
        name="key_value_cache",
        kind="a fixed number of tensors that grow",
        truth="generate concatenates the keys and values of 128 more tokens per generation in four layers; "
        "KeyValueCache.keys and KeyValueCache.values are never cut back.",
        planted=(
            Planted(
                phases=("generate",),
                types=("Tensor",),
                holders=(
                    "KeyValueCache.keys",
                    "KeyValueCache.values",
                    "cache.keys",
                    "cache.values",
                ),
                size="LAYERS * 2 * HEADS * TOKENS * WIDTH * 4",
            ),
        ),
        twin="a window of 1,280 tokens",
    ),
    Case(
        name="appended_transitions",
        kind="one array that grows",
        truth="rollout appends 4,000 transitions per generation to the one array of Dataset.transitions.",
        planted=(
            Planted(
                phases=("rollout",),
                types=("ndarray",),
                holders=("Dataset.transitions", "dataset.transitions", "dataset"),
                size="STEPS * TRANSITION_BYTES",
            ),
        ),
        twin="keeps the newest 40,000 transitions",
    ),
    Case(
        name="packed_stream",
        kind="one bytearray that grows",
        truth="pack extends the bytearray stream by 1,500 samples per generation, and nothing is uploaded.",
        planted=(
            Planted(
                phases=("pack",),
                types=("bytearray",),
                holders=("stream",),
                size="SAMPLES * SAMPLE_BYTES",
            ),
        ),
        twin="a sawtooth: what waits is uploaded every fifth generation",
    ),
    Case(
        name="open_compressors",
        kind="handles of a C library: compressors of zlib",
        truth="write_metrics opens 14 compressors per generation, 256 KiB each; MetricWriter.open keeps them.",
        planted=(
            Planted(
                phases=("write_metrics",),
                types=("Compress",),
                holders=("MetricWriter.open", "writer.open"),
                size="STREAMS * COMPRESSOR_BYTES",
            ),
        ),
        twin="140 streams may be open, the oldest is closed",
    ),
    Case(
        name="c_buffers",
        kind="handles of a C library: buffers of ctypes",
        truth="simulate renders 16 frames per generation into buffers of ctypes; Recorder.frames keeps them.",
        planted=(
            Planted(
                phases=("simulate",),
                types=("c_char_Array_196608",),
                holders=("Recorder.frames", "recorder.frames"),
                size="FRAMES * FRAME_BYTES",
            ),
        ),
        twin="keeps 160 frames",
    ),
    Case(
        name="shard_tables",
        kind="handles of a C library: tables of Arrow",
        truth="read_shards puts three tables per epoch into ShardReader.tables; their buffers lie in Arrow's pool.",
        planted=(
            Planted(
                phases=("read_shards",),
                types=("Table",),
                holders=("ShardReader.tables", "reader.tables"),
                size="SHARDS * ROWS * COLUMNS * 4",
            ),
        ),
        twin="keeps the tables of ten epochs",
    ),
    Case(
        name="traced_models",
        kind="handles of a C library: traced models, whose weights Python counts",
        truth="export appends a traced model with its own weights to Exporter.candidates in each generation.",
        planted=(
            Planted(
                phases=("export",),
                types=(
                    "TopLevelTracedModule",
                    "TracedModule",
                    "RecursiveScriptModule",
                    "Parameter",
                ),
                holders=("Exporter.candidates", "exporter.candidates"),
                size="WEIGHTS * 4 + TRACED_BYTES",
            ),
        ),
        twin="keeps ten candidates",
    ),
    Case(
        name="decoder_backlog",
        kind="backlog filled by a background thread",
        truth="A thread decodes 30 samples per generation, of which fetch takes eight; Decoder.pending keeps the rest. "
        "Every fourth generation augment takes 40 MiB more and gives it back.",
        planted=(
            Planted(
                phases=("fetch", "train", "augment", None),
                types=("ndarray", "dict"),
                holders=("Decoder.pending", "decoder.pending"),
                size="(DECODED - TAKEN) * SAMPLE_BYTES",
            ),
        ),
        twin="the thread waits while 220 samples are pending",
    ),
    Case(
        name="submitted_uploads",
        kind="backlog of a pool of threads",
        truth="predict submits 20 uploads per generation, and the pool does four of them: the rest waits with its "
        "predictions in the work queue of ThreadPoolExecutor.",
        planted=(
            Planted(
                phases=("predict",),
                types=("ndarray", "_WorkItem", "Future"),
                holders=("_work_queue",),
                size="(UPLOADS - DONE) * ROWS * COLUMNS * 4",
            ),
        ),
        twin="skips uploads while 120 wait",
    ),
    Case(
        name="log_records",
        kind="backlog of a queue of records",
        truth="log_predictions puts 600 records per generation into the queue of a listener that formats 100.",
        planted=(
            Planted(
                phases=("log_predictions",),
                types=("LogRecord", "str"),
                holders=("records.queue", "Queue.queue", "Listener.records", "listener.records"),
                size="(RECORDS - FORMATTED) * RECORD_BYTES",
            ),
        ),
        twin="the queue holds 5,000 records and drops what is more",
    ),
    Case(
        name="growing_worker",
        kind="one child process that grows",
        truth="The worker remembers twelve trajectories per generation; the training process stays as it is.",
        planted=(
            Planted(
                phases=("evaluate", None),
                types=(),
                holders=None,
                size="EPISODES * STEPS * OBSERVATION * 4",
                kinds=("children",),
            ),
        ),
        twin="the worker remembers 120 trajectories",
    ),
    Case(
        name="started_servers",
        kind="more child processes: programs of their own",
        truth="reset starts a server per generation, which Environment.servers keeps running.",
        planted=(
            Planted(
                phases=("reset",),
                types=("Popen",),
                holders=("Environment.servers", "environment.servers"),
                size="SERVER_BYTES + PROCESS_BYTES",
                kinds=("children", "objects", "container"),
            ),
        ),
        twin="ten servers run, the oldest is stopped",
    ),
    Case(
        name="worker_pools",
        kind="more child processes: pools, within a small budget",
        truth="load_fold opens a pool of two workers per generation; Folds.pools keeps all of them open.",
        planted=(
            Planted(
                phases=("load_fold",),
                types=("Pool", "ForkProcess"),
                holders=("Folds.pools", "folds.pools"),
                size="WORKERS * (FOLD_BYTES + PROCESS_BYTES)",
                kinds=("children", "objects", "container"),
            ),
        ),
        twin="five pools are open, the oldest is terminated",
    ),
    Case(
        name="saved_log_probs",
        kind="small tensors that keep their graph",
        truth="rollout appends 300 log probabilities per generation to Policy.saved_log_probs; backward has freed what "
        "their graphs saved, and the nodes stay.",
        planted=(
            Planted(
                phases=("rollout",),
                types=("Tensor", "SumBackward0"),
                holders=("Policy.saved_log_probs", "policy.saved_log_probs"),
                size="STEPS * GRAPH_BYTES",
            ),
        ),
        twin="keeps the newest 3,000",
    ),
    Case(
        name="epoch_means",
        kind="small tensors that keep their graph, without phases",
        truth="Each of 250 steps per generation appends its loss to Trainer.metrics; backward has freed what its graph "
        "saved, and the nodes stay.",
        planted=(
            Planted(
                phases=(None,),
                types=("Tensor", "MeanBackward0"),
                holders=("Trainer.metrics", "trainer.metrics"),
                size="STEPS * GRAPH_BYTES",
            ),
        ),
        twin="keeps the newest 2,500",
    ),
    Case(
        name="records_and_matrices",
        kind="two phases that both leak: many small objects, few large ones",
        truth="simulate keeps 4,000 StepRecords per generation in Reports.records, and assess two matrices of "
        "1.6 MiB in Reports.matrices.",
        planted=(
            Planted(
                phases=("simulate",),
                types=("StepRecord", "float"),
                holders=("Reports.records", "reports.records"),
                size="STEPS * RECORD_BYTES",
            ),
            Planted(
                phases=("assess",),
                types=("ndarray",),
                holders=("Reports.matrices", "reports.matrices"),
                size="MATRICES * CLASSES * CLASSES * 4",
            ),
        ),
        twin="both keep ten generations",
    ),
    Case(
        name="growing_memory_and_lists",
        kind="two phases that both leak: one array that becomes longer, more objects",
        truth="embed concatenates 2 MiB per generation to the one array Memory.bank, and retrieve keeps six results as "
        "bytes in Evaluation.packed.",
        planted=(
            Planted(
                phases=("embed",),
                types=("ndarray",),
                holders=("Memory.bank", "memory.bank"),
                size="ROWS * WIDTH * 4",
            ),
            Planted(
                phases=("retrieve",),
                types=(),
                holders=("Evaluation.packed", "evaluation.packed"),
                size="QUERIES * RESULTS",
            ),
        ),
        twin="both keep ten generations",
    ),
    Case(
        name="made_in_rollout_kept_by_update",
        kind="two phases that both leak: one keeps what another made",
        truth="rollout makes twelve trajectories per generation that update keeps in Learner.demonstrations; evaluate "
        "keeps three frames as bytes in videos.",
        planted=(
            Planted(
                phases=("rollout",),
                types=("Trajectory", "ndarray"),
                holders=("Learner.demonstrations", "learner.demonstrations"),
                size="TRAJECTORIES * STEPS * OBSERVATION * 4",
            ),
            Planted(
                phases=("evaluate",),
                types=(),
                holders=("videos",),
                size="FRAMES * SIDE * SIDE",
            ),
        ),
        twin="both keep ten generations",
    ),
    Case(
        name="declared_episode_store",
        kind="a declared store of varying items, and a separate leak",
        truth="evaluate keeps eight rendered frames per generation in rendered; the declared deque of episodes is "
        "full after 12 generations.",
        planted=(
            Planted(
                phases=("evaluate",),
                types=("ndarray",),
                holders=("rendered",),
                size="FRAMES * SIDE * SIDE * 4",
            ),
        ),
        twin="keeps no frames; the store stays",
    ),
    Case(
        name="declared_sequence_replay",
        kind="a declared store of varying items, and a separate leak",
        truth="act keeps the hidden state of each sequence in Actor.hidden_of; the declared ring of sequences is full "
        "after 13 generations.",
        planted=(
            Planted(
                phases=("act",),
                types=("Tensor",),
                holders=("Actor.hidden_of", "actor.hidden_of"),
                size="SEQUENCES * HIDDEN_ROWS * HIDDEN * 4",
            ),
        ),
        twin="removes the hidden states; the ring stays",
    ),
    Case(
        name="overwritten_outputs",
        kind="a container that is replaced, and a leak of the same type",
        truth="train keeps ten losses with their graph per generation in Trainer.losses; Trainer.outputs is replaced.",
        planted=(
            Planted(
                phases=("train",),
                types=("Tensor", "MeanBackward0"),
                holders=("Trainer.losses", "trainer.losses"),
                size="KEPT * BATCH * (INPUTS + HIDDEN + 32) * 4",
            ),
        ),
        twin="keeps the losses of ten generations",
    ),
    Case(
        name="overwritten_batches",
        kind="a container that is replaced, and a leak of the same type",
        truth="profile keeps five arrays per generation in Profiler.snapshots; Loader.last_batches and "
        "Profiler.last_metrics are replaced.",
        planted=(
            Planted(
                phases=("profile",),
                types=("ndarray",),
                holders=("Profiler.snapshots", "profiler.snapshots"),
                size="SNAPSHOTS * ROWS * 256 * 4",
            ),
        ),
        twin="keeps the snapshots of ten generations",
    ),
    Case(
        name="overwritten_gradients",
        kind="a container that is replaced, and a leak of the same type",
        truth="train keeps six dicts of clipped gradients per generation in GradientMonitor.clipped; "
        "GradientMonitor.last is replaced.",
        planted=(
            Planted(
                phases=("train",),
                types=("Tensor", "dict"),
                holders=("GradientMonitor.clipped", "monitor.clipped"),
                size="CLIPPED * (INPUTS + 9) * HIDDEN * 4",
            ),
        ),
        twin="keeps the gradients of ten generations",
    ),
    Case(
        name="gradient_hooks",
        kind="graphs and hooks that are kept",
        truth="watch registers one more hook per generation on a parameter, whose GradientRecorder keeps the eight "
        "gradients that it records in train.",
        planted=(
            Planted(
                phases=("train", "watch"),
                types=("Tensor", "GradientRecorder"),
                holders=(
                    "GradientRecorder.gradients",
                    "Parameter._backward_hooks",
                    "parameter._backward_hooks",
                    "main.parameter",
                ),
                size="STEPS_RECORDED * INPUTS * HIDDEN * 4",
            ),
        ),
        twin="removes the hooks of recorders that are ten generations old",
    ),
    Case(
        name="inner_loop_graphs",
        kind="graphs that are kept by a cycle",
        truth="adapt runs backward with create_graph for three learners per generation; parameters and gradients hold "
        "each other. MetaLearner.task_gradients holds copies and is replaced.",
        planted=(
            Planted(
                phases=("adapt",),
                types=("Parameter", "Tensor", "AccumulateGrad"),
                holders=None,
                size="TASKS * (TENSORS_PER_WEIGHT * (INPUTS + 8) + ACTIVATIONS * ROWS) * HIDDEN * 4",
                kinds=("graph", "tensors"),
            ),
        ),
        twin="takes such steps during a warm-up of ten generations only",
    ),
    Case(
        name="notebook_cell_again",
        kind="generation numbers that restart",
        truth="predict keeps eight arrays per generation in predictions, over three executions of the cell.",
        planted=(
            Planted(
                phases=("predict",),
                types=("ndarray",),
                holders=("predictions",),
                size="BATCHES * ROWS * CLASSES * 4",
            ),
        ),
        twin="keeps the predictions of ten generations",
    ),
    Case(
        name="pretrain_then_finetune",
        kind="generation numbers that restart",
        truth="From generation 10 on, which the second loop calls 0, finetune keeps an attention map of 4.7 MiB per "
        "generation in Finetuner.attention_maps.",
        planted=(
            Planted(
                phases=("finetune",),
                types=("Tensor",),
                holders=("Finetuner.attention_maps", "finetuner.attention_maps"),
                size="HEADS * TOKENS * TOKENS * 4",
                first=(10, 10),
            ),
        ),
        twin="keeps four maps",
    ),
    Case(
        name="resumed_from_checkpoint",
        kind="generation numbers that go back",
        truth="train keeps five batches per generation in Guard.rejected, and goes back to its checkpoint twice.",
        planted=(
            Planted(
                phases=("train",),
                types=("ndarray",),
                holders=("Guard.rejected", "guard.rejected"),
                size="REJECTED * ROWS * INPUTS * 4",
            ),
        ),
        twin="keeps 50 batches",
    ),
)


# Switches of the examples. A case without a leak plants a peak.
_ERL_TRADING: Final = (
    Case(name="loss_graph", kind="losses kept with their graph", planted=(Planted(
        phases=("train_population",), types=("Tensor",), holders=("Trainer.losses",),
        # With 16 generations on a busy machine the graph was counted only two or three times, which may be too few.
        size=20.6 * MIB, first=(1, 1), kinds=("graph", "container"), counted=GRAPHS, count=1120,
    ),)),
    Case(name="episode_history", kind="episode history that a reset does not clear", planted=(Planted(
        phases=("evaluate_population",), types=(),
        holders=(
            "TradingEnvironment.episode_observations",
            "TradingEnvironment.episode_actions",
            "TradingEnvironment.episode_rewards",
        ),
        # The lists keep arrays, which are four fifths of the bytes.
        size=6.4 * MIB, first=(1, 1), kinds=("container", "objects", "arrays"),
        counted="episode_observations", count=3200,
    ),)),
    Case(name="kept_environments", kind="an environment per episode, kept in a list", planted=(Planted(
        phases=("evaluate_population",), types=("TradingEnvironment",), holders=("Trainer.environments",),
        size=11.2 * MIB, counted="TradingEnvironment", count=16,
    ),)),
    Case(name="cyclic_environments", kind="environments in cycles while the collector is off", planted=(Planted(
        phases=("evaluate_population",), types=("TradingEnvironment",), holders=None,
        size=11.7 * MIB, kinds=("cyclic_garbage",), counted="TradingEnvironment", count=16,
    ),)),
    Case(name="old_population", kind="replaced populations kept", planted=(Planted(
        phases=("evolve_population",), types=("DDPGAgent",), holders=("Trainer.past_populations",),
        size=16.4 * MIB, counted="DDPGAgent", count=16,
    ),)),
    Case(
        name="deepcopied_checkpoints", kind="state dicts that are deep-copied and dropped at once",
        matters=False, worst="watch", planted=(),
    ),
    Case(name="best_agents", kind="a clone kept of each best agent", planted=(Planted(
        phases=("evolve_population",), types=("DDPGAgent",), holders=("Trainer.best_agents",),
        size=0.99 * MIB, first=(1, 1), counted="DDPGAgent", count=1,
    ),)),
    Case(name="figures", kind="figures that are not closed", matters=False, planted=(Planted(
        phases=("plot_progress",), types=("Figure",), holders=None,
        size=0.8 * MIB, first=(4, 4), counted="figures", count=0.2,
    ),)),
    Case(name="loss_history", kind="a list of losses without a bound", matters=False, worst="watch", planted=(Planted(
        phases=("train_population",), types=(), holders=("Trainer.losses",),
        size=10 * 2**10, first=(4, 4), kinds=("container", "objects"), counted="losses", count=320,
    ),)),
    Case(name="kept_batches", kind="batches kept after their step", planted=(Planted(
        phases=("train_population",), types=("Experience",), holders=("Trainer.batches",),
        size=7 * MIB, first=(1, 1), counted="Experience", count=160,
    ),)),
    Case(name="pending_uploads", kind="queue that fills faster than its consumer", planted=(Planted(
        phases=("upload_checkpoints",), types=("Upload",), holders=("CheckpointUploads.pending",),
        size=4.1 * MIB, counted="Upload", count=4,
    ),)),
)  # fmt: skip
_DQN_FUEL_BREAKS: Final = (
    Case(name="metrics", kind="metrics logged into lists without a bound", planted=(Planted(
        phases=("collect",), types=(), holders=("values", "DQNAgent.values"),
        size=3 * MIB, kinds=("container", "objects"), counted="agent.values", count=320,
    ),)),
    Case(name="attached_tensors", kind="tensors of a replay buffer kept with their graph", planted=(Planted(
        phases=("collect",), types=("Tensor",), holders=("ReplayBuffer.priorities",),
        size=11.6 * MIB, kinds=("graph",), counted=GRAPHS, count=480,
    ),)),
    Case(name="experience", kind="local buffer of experiences without a bound", planted=(Planted(
        phases=("collect",), types=("Experience",), holders=("experience", "ExperienceCollector.experience_buffer"),
        size=1.2 * MIB, kinds=("container", "objects"), counted="collector.experience_buffer", count=320,
    ),)),
    Case(name="environments", kind="environments per episode, kept in a list", planted=(Planted(
        phases=("collect",), types=("FireEnvironment",), holders=("Trainer.vectorised",),
        size=3.5 * MIB, first=(1, 1), counted="FireEnvironment", count=8,
    ),)),
    Case(name="figures", kind="figures of which only every second one is closed", planted=(Planted(
        phases=("plot",), types=("Figure",), holders=None,
        size=1.9 * MIB, first=(1, 1), counted="figures", count=0.5,
    ),)),
)  # fmt: skip
EXAMPLES: Final = {
    "erl_trading": {case.name: case for case in _ERL_TRADING},
    "dqn_fuel_breaks": {case.name: case for case in _DQN_FUEL_BREAKS},
}
