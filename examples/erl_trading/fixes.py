"""Fixes that a training can declare, with what was promised of them. None of them changes what the training does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Fix:
    """``phase``: the one that was blamed; ``location``: where the program was changed."""

    phase: str
    location: str
    promises: Mapping[str, Any]


FIXES: Final[dict[str, Fix]] = {
    # Losses are stored as numbers, no longer with their graphs. What the replay buffer may hold is no growth.
    "detach_losses": Fix(
        phase="train_population",
        location="erl_trading/trainer.py: Trainer.train_population",
        promises={
            "growth_bytes_per_generation": "1 MiB",
            "max_jump_bytes_per_generation": "64 MiB",
            "gpu_peak_bytes": "1 GiB",
        },
    ),
    # Environments are used again and know nothing of each other; the collector stays on.
    "break_cycles": Fix(
        phase="evaluate_population",
        location="erl_trading/trainer.py: Trainer.evaluate_population",
        promises={"growth_bytes_per_generation": "1 MiB"},
    ),
    # A batch is let go after its step.
    "drop_batches": Fix(
        phase="train_population",
        location="erl_trading/trainer.py: Trainer.train_population",
        promises={"growth_bytes_per_generation": "1 MiB"},
    ),
    # A checkpoint is sent before the next one waits.
    "drain_uploads": Fix(
        phase="upload_checkpoints",
        location="erl_trading/checkpoints.py: CheckpointUploads.add",
        promises={"growth_bytes_per_generation": "1 MiB"},
    ),
}
