"""Trains a small model with a framework, and prints the trained weights and how many trainings were recorded.

The second argument is a word: ``once``, ``twice``, ``own`` (with our callback) or ``within`` (a callback trains, too).
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
import torch

from leakline.integrations.training import Training

EPOCHS = 6
FRAMEWORK, HOW = sys.argv[1:3]


def hash_of(tensors: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def ours(module: str, **options: Any) -> list[Any]:
    """Return the callback of a program that adds it itself."""
    if HOW != "own":
        return []
    return [import_module(f"leakline.integrations.{module}").LeaklineCallback("own", **options)]


def within(base: type, hook: str, train: Callable[[], object]) -> list[Any]:
    """Return a callback that once trains another model."""
    if HOW != "within":
        return []
    left = [train]

    def begin(self: Any, *given: Any, **named: Any) -> None:
        if left:
            left.pop()()

    return [type("Within", (base,), {hook: begin})()]


def transformers(is_inner: bool = False) -> Any:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Numbers(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": torch.full((8,), index / 64), "labels": torch.full((8,), 0.5)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = torch.nn.Linear(8, 8), torch.nn.Dropout()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.layer(self.drop(x)), labels)}

    class Silent(Trainer):
        """A subclass with a constructor of its own, as in TRL."""

        def __init__(self, folder: str, model: Any, callbacks: Any) -> None:
            arguments = TrainingArguments(
                folder, max_steps=EPOCHS, use_cpu=True, report_to="none", disable_tqdm=True,
                save_strategy="no", dataloader_pin_memory=False,
            )  # fmt: skip
            super().__init__(model, arguments, train_dataset=Numbers())
            for each in callbacks:
                self.add_callback(each)

    model = Model()
    inner = (
        []
        if is_inner
        else within(TrainerCallback, "on_step_end", lambda: transformers(is_inner=True))
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Silent(folder, model, [*inner, *ours("transformers")])
        trainer.train()
        trainer.save_model(folder)
    return model.parameters()


def lightning(package: str = "lightning.pytorch", is_inner: bool = False) -> Any:
    pl = import_module(package)

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = torch.nn.Linear(8, 8), torch.nn.Dropout()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return self.layer(self.drop(batch[0])).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    data = torch.utils.data.TensorDataset(torch.rand(64, 8))
    loader, model = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True), Model()
    hook = "on_train_epoch_end"
    inner = [] if is_inner else within(pl.Callback, hook, lambda: lightning(package, is_inner=True))
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, callbacks=[*inner, *ours("lightning")],
        )  # fmt: skip
        trainer.fit(model, loader)
    return model.parameters()


def keras(is_inner: bool = False) -> Any:
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse")
    x, hook = np.random.default_rng(0).random((64, 8)), "on_epoch_end"
    inner = [] if is_inner else within(keras.callbacks.Callback, hook, _train_keras_within)
    model.fit(x, x, epochs=EPOCHS, verbose=0, callbacks=(*inner, *ours("keras")))
    return [torch.as_tensor(each) for each in model.get_weights()]


def sb3(is_inner: bool = False) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList

    class Steps(BaseCallback):
        def _on_step(self) -> bool:
            return True

    hook = "_on_rollout_end"
    inner = [] if is_inner else within(Steps, hook, lambda: sb3(is_inner=True))
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu", seed=3)
    model.learn(64 * EPOCHS, callback=CallbackList([*inner, *ours("sb3"), Steps()]))
    return model.policy.parameters()


def _train_keras_within() -> None:
    keras(is_inner=True)


def main() -> None:
    begun, begin = [], Training.begin

    def counted(*given: Any, **named: Any) -> None:
        begun.append(given)
        begin(*given, **named)

    Training.begin = counted
    torch.manual_seed(0)
    for _ in range(2 if HOW == "twice" else 1):
        name = "lightning" if FRAMEWORK == "pytorch_lightning" else FRAMEWORK
        arguments = ["pytorch_lightning"] if FRAMEWORK == "pytorch_lightning" else []
        weights = globals()[name](*arguments)
        sys.stdout.write(f"{hash_of(weights)}\n")
    sys.stdout.write(f"random {torch.rand(1).item()}\n")
    sys.stderr.write(f"recorded trainings: {len(begun)}\n")


if __name__ == "__main__":
    main()
