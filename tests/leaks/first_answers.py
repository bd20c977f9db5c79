"""Programs whose first answer was wrong once: three of each kind, every one with a healthy twin.

What Leakline is measured by is the catalogue; nothing was ever tuned to its programs that are held back. These are for
the opposite: each kind of wrong answer stays corrected.
"""

from __future__ import annotations

from typing import Final

from tests.leaks.catalogue import Case, Planted

CASES: Final[tuple[Case, ...]] = (
    Case(
        name="records_and_matrices",
        kind="two phases that both leak: many small objects, few large ones",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="growing_memory_and_lists",
        kind="two phases that both leak: one array that becomes longer, more objects",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="made_in_rollout_kept_by_update",
        kind="two phases that both leak: one keeps what another made",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="declared_episode_store",
        kind="a declared store of varying items, and a leak beside it",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="declared_sequence_replay",
        kind="a declared store of varying items, and a leak beside it",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="overwritten_outputs",
        kind="a container that is replaced beside a leak of its type",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="overwritten_batches",
        kind="a container that is replaced beside a leak of its type",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="overwritten_gradients",
        kind="a container that is replaced beside a leak of its type",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="gradient_hooks",
        kind="graphs and hooks that are kept",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="inner_loop_graphs",
        kind="graphs that are kept by a cycle",
        references=(),
        truth="adapt runs backward with create_graph for three learners per generation; parameters and gradients hold "
        "each other. MetaLearner.task_gradients holds copies and is replaced.",
        planted=(
            Planted(
                phases=("adapt",),
                types=("Parameter", "Tensor", "AccumulateGrad"),
                holders=None,
                size="TASKS * (TENSORS_PER_WEIGHT * (INPUTS + 8) + ACTIVATIONS * ROWS) * HIDDEN * 4",
                called=("graph", "tensors"),
            ),
        ),
        twin="takes such steps during a warm-up of ten generations only",
        held_back=False,
    ),
    Case(
        name="notebook_cell_again",
        kind="generation numbers that begin again",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="pretrain_then_finetune",
        kind="generation numbers that begin again",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="resumed_from_checkpoint",
        kind="generation numbers that go back",
        references=(),
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
        held_back=False,
    ),
)
