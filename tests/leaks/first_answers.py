"""Programs whose first answer was wrong once: three of each kind, every one with a healthy twin.

What Leakline is measured by is the catalogue; nothing was ever tuned to its programs that are held back. These are for
the opposite: each kind of wrong answer stays corrected.
"""

from __future__ import annotations

from typing import Final

from tests.leaks.catalogue import Case, Planted

CASES: Final[tuple[Case, ...]] = (
    Case(
        name="key_value_cache",
        kind="a fixed number of tensors that grow",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="appended_transitions",
        kind="one array that grows",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="packed_stream",
        kind="one bytearray that grows",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="open_compressors",
        kind="handles of a C library: compressors of zlib",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="c_buffers",
        kind="handles of a C library: buffers of ctypes",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="shard_tables",
        kind="handles of a C library: tables of Arrow",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="traced_models",
        kind="handles of a C library: traced models, whose weights Python counts",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="decoder_backlog",
        kind="backlog filled by a background thread",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="submitted_uploads",
        kind="backlog of a pool of threads",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="log_records",
        kind="backlog of a queue of records",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="growing_worker",
        kind="one child process that grows",
        references=(),
        truth="The worker remembers twelve trajectories per generation; the training process stays as it is.",
        planted=(
            Planted(
                phases=("evaluate", None),
                types=(),
                holders=None,
                size="EPISODES * STEPS * OBSERVATION * 4",
                called=("children",),
            ),
        ),
        twin="the worker remembers 120 trajectories",
        held_back=False,
    ),
    Case(
        name="started_servers",
        kind="more child processes: programs of their own",
        references=(),
        truth="reset starts a server per generation, which Environment.servers keeps running.",
        planted=(
            Planted(
                phases=("reset",),
                types=("Popen",),
                holders=("Environment.servers", "environment.servers"),
                size="SERVER_BYTES + PROCESS_BYTES",
                called=("children", "objects", "container"),
            ),
        ),
        twin="ten servers run, the oldest is stopped",
        held_back=False,
    ),
    Case(
        name="worker_pools",
        kind="more child processes: pools, within a small budget",
        references=(),
        truth="load_fold opens a pool of two workers per generation; Folds.pools keeps all of them open.",
        planted=(
            Planted(
                phases=("load_fold",),
                types=("Pool", "ForkProcess"),
                holders=("Folds.pools", "folds.pools"),
                size="WORKERS * (FOLD_BYTES + PROCESS_BYTES)",
                called=("children", "objects", "container"),
            ),
        ),
        twin="five pools are open, the oldest is terminated",
        held_back=False,
    ),
    Case(
        name="saved_log_probs",
        kind="small tensors that keep their graph",
        references=(),
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
        held_back=False,
    ),
    Case(
        name="epoch_means",
        kind="small tensors that keep their graph, without phases",
        references=(),
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
        held_back=False,
    ),
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
