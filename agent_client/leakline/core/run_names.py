"""Readable names for runs: two words and a number, the same for the same run id."""

from __future__ import annotations

import hashlib
from typing import Final

_WORDS: Final = """
amber brave calm clear crisp deep eager early fair fleet gentle golden green keen kind late light
lively mellow misty noble plain proud quick quiet rapid ready silver sound spare steady still sunny
"""
_ANIMALS: Final = """
badger beaver bison crane dove eagle egret falcon finch fox gull hare heron ibis jay kestrel lark
lynx marten mole newt otter owl plover puffin raven robin seal shrew stoat stork swan tern thrush
"""


def readable_name(run_id: str) -> str:
    digest = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8])
    words, animals = _WORDS.split(), _ANIMALS.split()
    digest, first = divmod(digest, len(words))
    digest, second = divmod(digest, len(animals))
    return f"{words[first]}-{animals[second]}-{digest % 1000}"
