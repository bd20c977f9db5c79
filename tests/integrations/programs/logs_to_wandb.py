"""Keeps 8 MiB in each epoch and logs to W&B offline, whose monitor reads the memory of this process."""

from __future__ import annotations

import time

import wandb

EPOCHS = 8

if __name__ == "__main__":
    settings = wandb.Settings(mode="offline", x_stats_sampling_interval=0.3, silent=True)
    run = wandb.init(project="leaky", name="before-fix", dir=".", settings=settings)
    kept = []
    for epoch in range(EPOCHS):
        kept.append(bytearray(b"x" * (8 << 20)))
        run.log({"epoch": epoch, "loss": 1.0 / (epoch + 1)})
        # Time for two readings of the monitor.
        time.sleep(0.7)
    run.finish()
