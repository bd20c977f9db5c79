"""What looks like a secret is not stored: of what programs tell of themselves, as well as a pattern can.

Our client leaves them out before anything is sent (`leakline.core.environment`); other programs send what they like.
Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from leakline.core.environment import NAMES_A_SECRET, command_line, masked

HIDDEN: Final = "***"
_COMMAND: Final = "command_line"
# Trainings count tokens and name them: `max_tokens`, `pad_token` = "<pad>".
_TOKEN: Final = re.compile(
    r"(?i)(?:^|[-_.])(?:auth|access|refresh|bearer|session|api|hf|github)?[-_.]?token$"
)
_OF_A_TOKENIZER: Final = re.compile(r"[<\[{|].*|[\d.,_]*")
_SHORTEST_TOKEN: Final = 8


def redacted(given: Any) -> Any:
    """A JSON value without what keys call a secret, and without those that texts say themselves."""
    if isinstance(given, str):
        return masked(given)
    if isinstance(given, dict):
        return {key: _under(key, value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [redacted(each) for each in given]
    return given


def _under(key: str, value: Any) -> Any:
    if _may_tell(value) and _names_a_secret(key, value):
        return HIDDEN
    if (
        key == _COMMAND
        and isinstance(value, (list, tuple))
        and all(isinstance(v, str) for v in value)
    ):
        # A secret may stand behind the option that names it.
        return command_line(value)
    return redacted(value)


def _may_tell(value: Any) -> bool:
    """Neither nothing nor a yes or no, which says only whether there is a secret."""
    return not isinstance(value, bool) and value not in (None, "", [], (), {})


def _names_a_secret(key: str, value: Any) -> bool:
    if NAMES_A_SECRET.search(key):
        return True
    if not isinstance(value, str):
        # Numbers by the name of tokens are sizes of language models.
        return False
    is_token = len(value) >= _SHORTEST_TOKEN and not _OF_A_TOKENIZER.fullmatch(value)
    return is_token and _TOKEN.search(key) is not None
