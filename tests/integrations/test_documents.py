"""The examples of docs/integrations.md and docs/quickstart.md run as written and record a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ended

DOCS = Path(__file__).resolve().parents[2] / "docs"
NUMBERS = "from with_transformers import Model, Numbers\n"
# Headings of the sections, with the code that a reader already has.
BEFORE = {
    "Lightning": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
    "from with_lightning import Model\n"
    "model = Model()\nnumbers = TensorDataset(torch.rand(64, 64), torch.rand(64, 8))\n"
    "train_loader = DataLoader(numbers)\nvalidation_loader = DataLoader(numbers)\n",
    "Transformers": f"{NUMBERS}model = Model()\ntrain_data = validation_data = Numbers()\n",
    "Stable-Baselines3": "",
    "Keras": "import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport numpy as np\n"
    "x, y = np.random.rand(200, 8), np.random.rand(200, 1)\n",
    "Gymnasium": "",
    "torchrun and DataLoader workers": "model = loader = None\ndef train(model, loader): pass\n",
}
GENERATIONS = {"Transformers": 100}


def sections() -> dict[str, str]:
    """Return the text of each section by its heading."""
    _, *parts = re.split(r"^## ", (DOCS / "integrations.md").read_text(), flags=re.M)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def lines(name: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", sections()[name], re.S)
    return str(code)


def test_every_section_has_code_that_is_tested() -> None:
    # test_tensorflow_js.py tests the code for JavaScript.
    assert set(sections()) == {*BEFORE, "TensorFlow.js"}
    assert all(len(lines(name).splitlines()) <= 14 for name in BEFORE)


@pytest.mark.parametrize("name", BEFORE)
def test_the_code_of_a_section_runs(
    run_program: Callable[..., Ended], tmp_path: Path, name: str
) -> None:
    (tmp_path / "train.py").write_text(BEFORE[name] + lines(name))
    ended = run_program(["train.py"], f"document-{name.split()[0].lower()}")
    assert ended.status == 0, ended.errors
    assert ended.errors.count("leakline: run ") == 1
    assert ended.final_state()["state"] == "finished"
    assert ended.verdict(20)["generations"] == GENERATIONS.get(name, 20)


def test_the_example_for_finding_a_leak_prints_what_is_shown(
    run_program: Callable[..., Ended], tmp_path: Path
) -> None:
    """A first run without a leak: no finding, none of our own objects, and no duration of 0 s."""
    page = (
        (DOCS / "quickstart.md").read_text().partition("\n## Find a leak in your own training")[2]
    )
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.S)
    (tmp_path / "train.py").write_text(code)
    ended = run_program(["train.py"], "find-a-leak")
    assert ended.status == 0, ended.errors
    report, sentence = ended.output, shown.partition("+")[0]
    assert sentence in report, report.partition("VERDICT")[2]
    assert "about 0 s" not in report
    assert "leakline." not in report.partition("Objects:")[2].partition("VERDICT")[0]
    assert "[watch]" not in report
