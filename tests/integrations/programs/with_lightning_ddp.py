"""Two ranks that Lightning starts itself; the second keeps memory at the end of each validation."""

from __future__ import annotations

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from with_lightning import EPOCHS, KeepsPredictions, Model

from leakline.integrations.lightning import LeaklineCallback


class OnTheSecond(KeepsPredictions):
    def on_validation_end(self, trainer: lightning.Trainer, pl_module: object) -> None:
        if trainer.global_rank == 1:
            super().on_validation_end(trainer, pl_module)


def main() -> None:
    # Lightning sets the rank for its processes; that of the launcher of this test must not interfere.
    os.environ.pop("RANK", None)
    data = TensorDataset(torch.rand(2048, 64), torch.rand(2048, 8))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[OnTheSecond(), LeaklineCallback(project="lightning")],
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=64), DataLoader(data, batch_size=512))


if __name__ == "__main__":
    main()
