"""Redaction of likely secrets in the configuration and environment that programs report. Pure.

Our client removes secrets before sending (`leakline.core.environment`); other programs may not. Patterns cannot
recognize every secret.
"""

from __future__ import annotations

import re
from typing import Any, Final

from leakline.core.environment import NAMES_A_SECRET, command_line, masked

HIDDEN: Final = "***"
_COMMAND: Final = "command_line"
# Training code uses "token" for model tokens too: `max_tokens`, `pad_token` = "<pad>".
_TOKEN: Final = re.compile(
    r"(?i)(?:^|[-_.])(?:auth|access|refresh|bearer|session|api|hf|github)?[-_.]?token$"
)
_OF_A_TOKENIZER: Final = re.compile(r"[<\[{|].*|[\d.,_]*")
_SHORTEST_TOKEN: Final = 8


def redacted(given: Any) -> Any:
    """Return the JSON value with secrets redacted: values whose key names a secret, and secrets inside strings."""
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
        # A secret may follow the option that names it.
        return command_line(value)
    return redacted(value)


def _may_tell(value: Any) -> bool:
    """Return False for empty values and booleans, which reveal at most whether a secret exists."""
    return not isinstance(value, bool) and value not in (None, "", [], (), {})


def _names_a_secret(key: str, value: Any) -> bool:
    if NAMES_A_SECRET.search(key):
        return True
    if not isinstance(value, str):
        # Numbers under a key that contains "token" are parameters of language models.
        return False
    is_token = len(value) >= _SHORTEST_TOKEN and not _OF_A_TOKENIZER.fullmatch(value)
    return is_token and _TOKEN.search(key) is not None
