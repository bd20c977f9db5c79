"""Reports to the `Loop` when a program saves a checkpoint or logs metrics."""

from __future__ import annotations

import inspect
import sys
from typing import Final

from .plain_loop import Loop, replace

CHECKPOINT: Final = "checkpoint"
LOGGING: Final = "logging"
# By module: the phase of the functions, their class ("": the module itself) and the prefix of their names.
FUNCTIONS: Final = {
    "safetensors.torch": (CHECKPOINT, "", "save_"),
    "torch.distributed.checkpoint": (CHECKPOINT, "", "save"),
    "flax.training.checkpoints": (CHECKPOINT, "", "save_checkpoint"),
    "orbax.checkpoint.checkpoint_manager": (CHECKPOINT, "CheckpointManager", "save"),
    "orbax.checkpoint._src.checkpointers.checkpointer": (CHECKPOINT, "Checkpointer", "save"),
    "orbax.checkpoint._src.checkpointers.async_checkpointer": (
        CHECKPOINT,
        "AsyncCheckpointer",
        "save",
    ),
    "orbax.checkpoint._src.checkpointers.standard_checkpointer": (
        CHECKPOINT,
        "StandardCheckpointer",
        "save",
    ),
    "tensorflow.python.checkpoint.checkpoint": (CHECKPOINT, "Checkpoint", "save"),
    "tensorflow.python.checkpoint.checkpoint_management": (CHECKPOINT, "CheckpointManager", "save"),
    "keras.src.models.model": (CHECKPOINT, "Model", "save"),
    "torch.utils.tensorboard.writer": (LOGGING, "SummaryWriter", "add_"),
    "tensorboardX.writer": (LOGGING, "SummaryWriter", "add_"),
    "wandb.sdk.wandb_run": (LOGGING, "Run", "log"),
    "mlflow.tracking.fluent": (LOGGING, "", "log_"),
}


def watch(module: str, loop: Loop) -> None:
    """Replace the functions of this module, which has been imported, perhaps before torch."""
    phase, owner, prefix = FUNCTIONS[module]
    ends = (loop.saves, loop.saved) if phase == CHECKPOINT else (loop.logs, loop.logged)
    holder = getattr(sys.modules[module], owner) if owner else sys.modules[module]
    for name, function in list(vars(holder).items()):
        if name.startswith(prefix) and inspect.isfunction(function):
            replace(holder, name, loop.around(*ends))
