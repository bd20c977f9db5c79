"""A regression with the Trainer. A callback that runs before ours keeps memory after each save."""

from __future__ import annotations

import sys
import tempfile

import torch
from keeping import Keeper
from transformers import Trainer, TrainerCallback, TrainingArguments

from leakline.integrations.transformers import LeaklineCallback

STEPS = 240


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.layers(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": torch.full((64,), index / 1024), "labels": torch.full((8,), 0.5)}


class KeepsAtSaves(TrainerCallback):
    def __init__(self) -> None:
        self.checkpoints = Keeper()

    def on_save(self, *given: object, **named: object) -> None:
        self.checkpoints.keep()


class Raises(TrainerCallback):
    def on_step_end(self, args: object, state: object, *given: object, **named: object) -> None:
        if sys.argv[1] == "raise" and state.global_step == 60:
            raise ZeroDivisionError("planted")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=Model(),
            args=TrainingArguments(
                output_dir=folder, max_steps=STEPS, per_device_train_batch_size=16, use_cpu=True,
                eval_strategy="steps", eval_steps=10, save_strategy="steps", save_steps=10,
                save_total_limit=1, logging_steps=10, disable_tqdm=True, report_to="none",
                dataloader_pin_memory=False,
            ),
            train_dataset=Numbers(), eval_dataset=torch.utils.data.Subset(Numbers(), range(128)),
            callbacks=[KeepsAtSaves(), Raises(), LeaklineCallback(project="transformers", steps=10)],
        )  # fmt: skip
        trainer.train()


if __name__ == "__main__":
    main()
