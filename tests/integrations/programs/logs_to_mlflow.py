"""Keeps 32 MiB in each step and logs its own memory to MLflow on SQLite, whose monitor reads the machine's memory."""

from __future__ import annotations

import time

import mlflow
import psutil

STEPS = 12

if __name__ == "__main__":
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("leaky")
    mlflow.set_system_metrics_sampling_interval(0.3)
    mlflow.set_system_metrics_samples_before_logging(1)
    kept = []
    with mlflow.start_run(run_name="before-fix", log_system_metrics=True):
        for step in range(STEPS):
            kept.append(bytearray(b"x" * (32 << 20)))
            rss = psutil.Process().memory_info().rss
            mlflow.log_metrics({"rss_mib": rss / 2**20, "loss": 1.0 / (step + 1)}, step=step)
            time.sleep(0.2)
