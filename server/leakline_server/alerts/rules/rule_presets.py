"""Predefined sets of rules. A preset has no effect until a user adds it; alerts do not require rules.

Counts are integers, so "above 99" means "100 or more". The limits come from users' reports about normal and abnormal
training runs. Users can change each limit after adding the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...store.alerts.assertions import Terms

GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class PresetSet:
    """A set of rules; ``rules`` maps the name of each preset to its rule, mildest first."""

    title: str
    about: str
    rules: Mapping[str, Terms]


_BANDS: Final = (
    # (name, above, advice)
    ("elevated", 99.0, "Watch the count closely: does it fall again after each phase?"),
    (
        "high",
        200.0,
        "Look for tensors that are created in the loop and neither disposed of nor released; the run's page shows "
        "which types grow, and in which phase.",
    ),
    (
        "critical",
        500.0,
        "Clean up now, unless a registered cleanup already does. If the count does not fall, "
        "something else holds the tensors: find the holders on the run's page.",
    ),
)


def _bands(prefix: str, title: str, series: str) -> dict[str, Terms]:
    return {
        f"{prefix}.{name}": Terms(f"{title} {name}", series, above=above, advice=advice)
        for name, above, advice in _BANDS
    }


def _phase(phase: str, most: float, advice: str) -> Terms:
    return Terms(f"Growth of {phase}", f"phase.{phase}.bytes", above=most, hold=2, advice=advice)


SETS: Final[Mapping[str, PresetSet]] = {
    "tensors": PresetSet(
        "Tensor count bands", "Up to 99 is normal, from 100 elevated, above 200 high, above 500 critical.",
        _bands("tensors", "Tensors", "tensors.count"),
    ),
    "tfjs": PresetSet(
        "TensorFlow.js tensor count bands", "The same limits for training in the browser.",
        _bands("tfjs", "TensorFlow.js tensors", "tfjs.tensors"),
    ),
    "growth": PresetSet(
        "Growth of the process", "More than 1.5 GB per generation for three generations, or more than 5 GB for two.",
        {
            "growth.high": Terms(
                "Growth above normal", "process.rss_bytes", "rate", above=1.5 * GB, hold=3,
                advice="A buffer that fills up grows more slowly: check the growth by phase for other causes.",
            ),
            "growth.leak": Terms(
                "Growth of a leak", "process.rss_bytes", "rate", above=5 * GB, hold=2,
                advice="Save a checkpoint and read the verdict: at this rate memory runs out within hours.",
            ),
        },
    ),
    "phases": PresetSet(
        "Growth of each phase",
        "More than 4 GB in evaluate_population, 1 GB in train_population or 500 MB in evolve_population, for two "
        "generations in a row.",
        {
            "phases.evaluate": _phase(
                "evaluate_population", 4 * GB,
                "Are environments created in each evaluation instead of being reused?",
            ),
            "phases.train": _phase(
                "train_population", 1 * GB,
                "Are batches deleted, losses detached and gradients released after each training phase?",
            ),
            "phases.evolve": _phase(
                "evolve_population", 0.5 * GB, "Is the old population deleted before the new one is created?"
            ),
        },
    ),
    "gpu": PresetSet(
        "GPU memory", "More than 20 GB reserved on any GPU.",
        {"gpu.memory": Terms(
            "GPU memory", "cuda.*.reserved_bytes", above=20 * GB,
            advice="Compare allocated with reserved memory on the run's page: if only reserved grows, the allocator "
            "keeps unused memory; if both grow, tensors are held.",
        )},
    ),
    "time": PresetSet(
        "Time per generation", "The time per generation rises by significantly more than 0.1 s per generation.",
        {"time.generation": Terms(
            "Time per generation rises", "generation.seconds", "rate", above=0.1, hold=3,
            advice="Does each generation iterate over something that grows, such as a history, a buffer or a queue? "
            "Swapping also slows generations down.",
        )},
    ),
    "uploads": PresetSet(
        "Upload queue", "The gauge pending_uploads is above 50.",
        {"uploads.pending": Terms(
            "Upload queue", "gauge.pending_uploads", above=50.0,
            advice="Data is produced faster than it is uploaded: upload less data or less often, and bound the queue.",
        )},
    ),
}  # fmt: skip

PRESETS: Final[Mapping[str, Terms]] = {
    name: rule for each in SETS.values() for name, rule in each.rules.items()
}
