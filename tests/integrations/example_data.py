"""Generate what the public examples otherwise download: texts, tables and small models with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

VOCABULARY: Final = 100
SEED: Final = 7


def words(file: Path, count: int) -> None:
    """Write a text of ``count`` words out of VOCABULARY, 20 per line."""
    chosen = np.random.default_rng(SEED).integers(0, VOCABULARY, (count // 20, 20))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(" ".join(f"w{word}" for word in line) + " \n" for line in chosen))


def sentence_pairs(folder: Path, rows: int) -> None:
    """Write ``rows`` pairs of sentences with a label as data set `nyu-mll/glue`, and its metric as `glue`."""
    random, data = np.random.default_rng(SEED), folder / "nyu-mll" / "glue"
    data.mkdir(parents=True)
    for split, count in (("train", rows), ("validation", rows // 4)):
        drawn = random.integers(0, VOCABULARY, (count, 2, 30))
        pairs = [[" ".join(f"w{word}" for word in sentence) for sentence in pair] for pair in drawn]
        (data / f"{split}.jsonl").write_text("".join(
            json.dumps({"sentence1": one, "sentence2": two, "label": n % 2, "idx": n}) + "\n"
            for n, (one, two) in enumerate(pairs)
        ))  # fmt: skip
    (data / "README.md").write_text(
        "---\nconfigs:\n- config_name: mrpc\n  data_files:\n"
        "  - {split: train, path: train.jsonl}\n  - {split: validation, path: validation.jsonl}\n---\n"
    )
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(
        "import datasets\nimport evaluate\n\n\n"
        "class Glue(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        columns = {name: datasets.Value('int64') for name in ('predictions', 'references')}\n"
        "        return evaluate.MetricInfo(\n"
        "            description='', citation='', features=datasets.Features(columns)\n"
        "        )\n\n"
        "    def _compute(self, predictions, references):\n"
        "        right = sum(p == r for p, r in zip(predictions, references))\n"
        "        return {'accuracy': right / len(references)}\n"
    )


def preferences(folder: Path, rows: int) -> None:
    """Write a data set of ``rows`` chosen and rejected texts, and the same texts as a data set for a language model."""
    random = np.random.default_rng(SEED)
    drawn = random.integers(0, VOCABULARY, (rows, 2, 40))
    pairs = [[" ".join(f"w{word}" for word in text) for text in pair] for pair in drawn]
    for name, line in (
        ("preferences", lambda one, two: {"chosen": one, "rejected": two}),
        ("texts", lambda one, _two: {"text": one}),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text(
            "".join(json.dumps(line(*pair)) + "\n" for pair in pairs)
        )


def _tokenizer(folder: Path) -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]"]
    numbers = {word: n for n, word in enumerate([*special, *(f"w{n}" for n in range(VOCABULARY))])}
    splitting = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    splitting.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=splitting, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", eos_token="[EOS]", model_max_length=128,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    return tokenizer


def bert(folder: Path) -> None:
    """Write a BERT of two layers with its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = _tokenizer(folder)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=256, pad_token_id=0,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)


def llama(folder: Path) -> None:
    """Write a Llama of two layers with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=256, pad_token_id=0, eos_token_id=4, bos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
