"""A status or an outcome before its sentence, as every command and line prints it: the word once."""

from __future__ import annotations

import pytest

from leakline.sizes import worded


@pytest.mark.parametrize(
    ("word", "sentence", "said"),
    [
        ("fixed", "Fixed: 16 MiB before, 0 B after", "fixed: 16 MiB before, 0 B after"),
        ("no_effect", "No effect: neither run leaks", "no_effect: neither run leaks"),
        ("filling", "Filling, not leaking: replay", "filling: not leaking: replay"),
        ("ok", "No leak", "ok: No leak"),
        ("learning", "Learning", "learning: Learning"),
        ("watch", "Watchers grow", "watch: Watchers grow"),
    ],
)
def test_a_word_is_not_said_twice(word: str, sentence: str, said: str) -> None:
    assert worded(word, sentence) == said
