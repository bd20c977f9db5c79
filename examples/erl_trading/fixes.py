"""Fixes that a training can declare, with their promises. None of them changes the results of the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Fix:
    """``phase`` is the one of the finding; ``location`` is where the program was changed."""

    phase: str
    location: str
    promises: Mapping[str, Any]


FIXES: Final[dict[str, Fix]] = {
    # Losses are stored as numbers, no longer with their graphs. Filling the replay buffer is not growth.
    "detach_losses": Fix(
        phase="train_population",
        location="erl_trading/trainer.py: Trainer.train_population",
        promises={
            "growth_bytes_per_generation": "1 MiB",
            "max_jump_bytes_per_generation": "64 MiB",
            "gpu_peak_bytes": "1 GiB",
        },
    ),
    # Environments are reused and do not reference each other; the collector stays enabled.
    "break_cycles": Fix(
        phase="evaluate_population",
        location="erl_trading/trainer.py: Trainer.evaluate_population",
        promises={"growth_bytes_per_generation": "1 MiB"},
    ),
    # A batch is dropped after its step.
    "drop_batches": Fix(
        phase="train_population",
        location="erl_trading/trainer.py: Trainer.train_population",
        promises={"growth_bytes_per_generation": "1 MiB"},
    ),
    # A checkpoint is sent before the next one is queued.
    "drain_uploads": Fix(
        phase="upload_checkpoints",
        location="erl_trading/checkpoints.py: CheckpointUploads.add",
        promises={"growth_bytes_per_generation": "1 MiB"},
    ),
}
