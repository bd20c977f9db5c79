"""Public examples of seven libraries under `leakline run`: each unmodified, and with one line that leaks.

`.ci/bring-examples` brings them at one commit each. Their data and models are generated.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.flows.conftest import Server, clean_environment

from . import example_data as data
from .conftest import HERE, Ended
from .test_framework_loops import ACTIVE

# Ignored by git.
BROUGHT: Final = Path(__file__).resolve().parents[2] / ".peers" / "examples"
EXAMPLE_SECONDS: Final = 400.0
pytestmark = pytest.mark.timeout(2 * EXAMPLE_SECONDS + 60)


@dataclass(frozen=True)
class Example:
    """An example and its leak: ``added`` follows the first line with ``after``; if empty, that line is removed.

    ``phase``: in which the memory is kept. ``named``: what the first suspect must match, a type or a holder.
    ``prepare`` generates data in the folder with the copied examples. ``images``: training images of MNIST.
    """

    name: str
    path: str
    after: str
    added: str
    phase: str
    named: str
    prepare: Callable[[Path], None]
    arguments: tuple[str, ...] = ()
    images: int = 0

    def text(self, variant: str) -> str:
        """Return the program, with the leak if ``variant`` is "leak"."""
        text = (BROUGHT / self.path).read_text(encoding="utf-8")
        if self.path.endswith(".md"):
            blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
            text = next(block for block in blocks if self.after in block)
        if variant == "healthy":
            return text
        lines = text.splitlines(keepends=True)
        (at, line) = next((n, line) for n, line in enumerate(lines) if self.after in line)
        margin = line[: len(line) - len(line.lstrip())]
        if line.rstrip().endswith(":"):
            margin += "    "
        lines[at : at + 1] = [line, f"{margin}{self.added}\n"] if self.added else []
        return "".join(lines)


def results(folder: Path) -> None:
    (folder / "examples" / "vae" / "results").mkdir()


def waves(folder: Path) -> None:
    import numpy as np
    import torch

    steps = np.arange(200) + np.random.default_rng(data.SEED).integers(-80, 80, (20, 1))
    torch.save(
        np.sin(steps / 20.0), folder / "examples" / "time_sequence_prediction" / "traindata.pt"
    )


def corpus(folder: Path) -> None:
    for name, count in (("train", 60_000), ("valid", 10_000), ("test", 10_000)):
        data.words(folder / "examples" / "word_language_model" / "data" / f"{name}.txt", count)


def pairs(folder: Path) -> None:
    here = folder / "accelerate" / "examples"
    data.sentence_pairs(here, 1_600)
    data.bert(here / "bert-base-cased")


def texts_of_trl(folder: Path) -> None:
    for place in ("trl/scripts", "examples/scripts"):
        data.preferences(folder / "trl" / place, 400)
        data.llama(folder / "trl" / place / "model")


def nothing(_folder: Path) -> None:
    pass


TRL: Final = (
    "--model_name_or_path", "model", "--output_dir", "out", "--per_device_train_batch_size", "8",
    "--num_train_epochs", "12", "--report_to", "none", "--use_cpu", "True", "--save_strategy", "no",
)  # fmt: skip
EXAMPLES: Final = (
    Example(
        "mnist", "examples/mnist/main.py", "loss = F.nll_loss(output, target)",
        'args.__dict__.setdefault("seen", []).append(data.clone())',
        "train", r"Tensor|\bseen\b", nothing, ("--epochs", "10"), 3_000,
    ),
    Example(
        "vae", "examples/vae/main.py", "test_loss += loss_function",
        'model.__dict__.setdefault("shown", []).append(recon_batch)',
        "evaluation", r"Tensor|\bshown\b", results, ("--epochs", "30"), 3_000,
    ),
    Example(
        "time-series", "examples/time_sequence_prediction/train.py", "plt.close()", "",
        "train", r"Figure", waves, ("--steps", "15"),
    ),
    Example(
        "word-language-model", "examples/word_language_model/main.py", "total_loss += loss.item()",
        'model.__dict__.setdefault("states", []).append(hidden)',
        "train", r"Tensor|\bstates\b", corpus,
        ("--use-optimizer", "--lr", "0.001", "--epochs", "12", "--data", "data"),
    ),
    Example(
        "lightning-classifier", "lightning/examples/pytorch/basics/backbone_image_classifier.py",
        'self.log("valid_loss"', 'self.__dict__.setdefault("images", []).append(x.clone())',
        "validation", r"Tensor|\bimages\b", nothing,
        ("--trainer.max_epochs", "16", "--trainer.limit_train_batches", "100",
         "--trainer.limit_val_batches", "40"), 60_000,
    ),
    Example(
        "lightning-autoencoder", "lightning/examples/pytorch/basics/autoencoder.py",
        "x, _ = batch", 'self.__dict__.setdefault("seen", []).append(x.clone())',
        "train", r"Tensor|\bseen\b", nothing,
        ("--trainer.max_epochs", "16", "--trainer.limit_train_batches", "100",
         "--trainer.limit_val_batches", "10"), 60_000,
    ),
    Example(
        "fabric-classifier", "lightning/examples/fabric/image_classifier/train_fabric.py",
        "test_loss += F.nll_loss", 'model.__dict__.setdefault("seen", []).append(data.clone())',
        "evaluation", r"Tensor|\bseen\b", nothing, ("--epochs", "10"), 3_000,
    ),
    Example(
        "keras-subclass", "keras/examples/demo_subclass.py", "x = self.dense2(x)",
        'globals().setdefault("hidden", []).append(x.detach())',
        "train", r"Tensor|\bhidden\b", nothing,
    ),
    Example(
        "keras-custom-layer", "keras/examples/demo_custom_layer_backend_agnostic.py",
        "x = self.dp(x)", 'globals().setdefault("dropped", []).append(x.detach())',
        "train", r"Tensor|\bdropped\b", nothing,
    ),
    Example(
        "accelerate-nlp", "accelerate/examples/nlp_example.py", "loss = outputs.loss",
        'config.setdefault("inputs", []).append(batch["input_ids"].repeat(50, 1))',
        "train", r"Tensor|\binputs\b", pairs, ("--cpu",),
    ),
    Example(
        "trl-sft", "trl/trl/scripts/sft.py", "# Train the model",
        "kept = []; trainer.model.model.norm.register_forward_hook("
        "lambda module, inputs, output: kept.append(output.detach()))",
        "train", r"Tensor|\bkept\b", texts_of_trl, ("--dataset_name", "texts", *TRL),
    ),
    Example(
        "trl-reward", "trl/examples/scripts/reward_modeling.py", "# Training",
        "kept = []; model.score.register_forward_hook("
        "lambda module, inputs, output: kept.append(inputs[0].detach()))",
        "train", r"Tensor|\bkept\b", texts_of_trl, ("--dataset_name", "preferences", *TRL),
    ),
    Example(
        "sb3-evaluation", "stable-baselines3/docs/guide/examples.md",
        'model = SAC("MlpPolicy", train_env)',
        "seen = []; model.policy.actor.register_forward_hook("
        "lambda module, inputs, output: seen.append(inputs[0].repeat(8, 1)))",
        "learn", r"Tensor|\bseen\b", nothing,
    ),
)  # fmt: skip


@pytest.fixture(scope="session")
def brought() -> Path:
    """Bring the examples once."""
    script = Path(__file__).resolve().parents[2] / ".ci" / "bring-examples"
    subprocess.run([script, BROUGHT], check=True)
    return BROUGHT


@pytest.fixture
def run_example(brought: Path, server: Server, tmp_path: Path) -> Callable[[Example, str], Ended]:
    """Return a function that runs a variant of an example with generated data under `leakline run`."""

    def run(example: Example, variant: str) -> Ended:
        script = tmp_path / Path(example.path).with_suffix(".py")
        if not script.parent.exists():
            shutil.copytree((brought / example.path).parent, script.parent)
            example.prepare(tmp_path)
        script.write_text(example.text(variant), encoding="utf-8")
        name = f"{example.name}-{variant}"
        done = subprocess.run(
            [sys.executable, "-m", "leakline", "run", "--", sys.executable, script.name, *example.arguments],
            cwd=script.parent,
            env=clean_environment(
                LEAKLINE_SERVER=server.address, LEAKLINE_RUN_ID=name, OMP_NUM_THREADS="1",
                KERAS_BACKEND="torch", HF_HOME=str(tmp_path / "hub"), HF_HUB_OFFLINE="1",
                TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1",
                PYTHONPATH=str(HERE / "stand_ins") if example.images else "",
                LEAKLINE_TEST_IMAGES=str(example.images),
            ),
            capture_output=True, text=True, timeout=EXAMPLE_SECONDS, check=False,
        )  # fmt: skip
        return Ended(server, name, done.returncode, done.stdout, done.stderr, script.parent)

    return run


each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


@each
def test_a_public_example_has_no_findings(
    run_example: Callable[[Example, str], Ended], example: Example
) -> None:
    verdict = run_example(example, "healthy").final_verdict()
    assert verdict["status"] not in ACTIVE, verdict["summary"]


@each
def test_one_line_that_leaks_is_found_with_its_phase_and_what_is_kept(
    run_example: Callable[[Example, str], Ended], example: Example
) -> None:
    verdict = run_example(example, "leak").final_verdict()
    assert verdict["status"] in ACTIVE, verdict["summary"]
    first = verdict["findings"][0]
    assert first["phase"] == example.phase, verdict["summary"]
    assert re.search(example.named, first["suspects"][0]["name"]), verdict["summary"]
