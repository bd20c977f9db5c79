"""A regression in Lightning. A callback that runs before ours keeps memory at the end of each validation."""

from __future__ import annotations

import sys

import lightning
import torch
from keeping import Keeper
from torch.utils.data import DataLoader, TensorDataset

from leakline.integrations.lightning import LeaklineCallback

EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 24


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
        )

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class KeepsPredictions(lightning.Callback):
    def __init__(self) -> None:
        self.predictions = Keeper()

    def on_validation_end(self, trainer: object, pl_module: object) -> None:
        if not trainer.sanity_checking:
            self.predictions.keep()


class Raises(lightning.Callback):
    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: object) -> None:
        if sys.argv[1] == "raise" and trainer.current_epoch == 5:
            raise ZeroDivisionError("planted")


def main() -> None:
    data = TensorDataset(torch.rand(2048, 64), torch.rand(2048, 8))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[KeepsPredictions(), Raises(), LeaklineCallback(project="lightning")],
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=64), DataLoader(data, batch_size=512))


if __name__ == "__main__":
    main()
