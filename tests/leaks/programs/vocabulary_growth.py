"""A tokenizer that learns words as it reads: dates and identifiers are new forever, words of a language are not."""

from __future__ import annotations

import sys

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("tokenize", "train", "evaluate")
WORDS = 16_000
LANGUAGE = 160_000
# A word, its number, and its share of three tables: numbers, counts and interned words.
WORD_BYTES = 200


class Vocabulary:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def encode(self, words: list[str]) -> list[int]:
        for word in words:
            word = sys.intern(word)
            self.numbers.setdefault(word, len(self.numbers))
            self.counts[word] = self.counts.get(word, 0) + 1
        return [self.numbers[word] for word in words]


def read_words(generation: int, language: int | None) -> list[str]:
    """Return the next words of the stream; a finite language starts over when all its words have been read."""
    first = generation * WORDS
    numbers = range(first, first + WORDS)
    return [f"token-{number % language if language else number:09d}" for number in numbers]


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    model = Network(random)
    vocabulary = Vocabulary()
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("tokenize"):
            words = read_words(generation, None if options.leaking else LANGUAGE)
            tokens = np.array(vocabulary.encode(words), dtype=np.float32)
        with run.phase("train"):
            model.step(tokens.reshape(-1, 64) / tokens.max(), normal(random, WORDS // 64, 8))
            model.fit(random, steps=450)
        with run.phase("evaluate"):
            run.gauge("score", float(model.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
