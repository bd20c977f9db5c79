"""Cleans text that programs and people send: of characters that control its display, and of likely secrets. Pure.

The characters are C0 with DEL, C1, the line and paragraph separators, the byte order mark, and the bidirectional marks,
which can make ``txt.exe`` look like ``exe.txt``. Right-to-left languages do not need these marks.

Our client removes secrets before sending (`leakline.core.environment`); other programs may not. Patterns cannot
recognize every secret.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

from leakline.core.environment import NAMES_A_SECRET, command_line, masked

from .limits import MAX_NAME_LENGTH

# Even if 100,000 keys of a batch become equal, two keys share a digest in only one of 60,000 such batches.
SIGN_BYTES: Final = 6

_STEERING: Final = r"\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
# A visible character, for patterns in the API schema.
SAYS_SOMETHING: Final = rf"[^\s\x00-\x1f\x7f{_STEERING}]"
_CONTROL: Final = re.compile(rf"[\x00-\x1f\x7f{_STEERING}]+")
# Control characters to remove from multi-line text.
_IN_LINES: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f{_STEERING}]+")
_MARKS: Final = re.compile(f"[{_STEERING}]+")
# The characters of `_STEERING` in UTF-8.
_ENCODED: Final = re.compile(
    rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xef\xbb\xbf"
)
_NO_TEXTS: Final = frozenset({int, float, bool, type(None)})


def without_control(text: str) -> str:
    return _CONTROL.sub("", text)


def lines_without_control(text: str) -> str:
    """Remove control characters except tabs and line feeds."""
    return _IN_LINES.sub("", text)


def may_steer(body: bytes) -> bool:
    """Return True if the JSON may contain a character to remove, literally or escaped; other JSON needs no cleaning."""
    if b"\\" in body or b"\x7f" in body:
        return True
    return not body.isascii() and _ENCODED.search(body) is not None


def all_without_control(thing: Any) -> Any:
    """Clean every string and key of a JSON value. Different keys stay different: see `_name`."""
    return _all(thing, _CONTROL)


def all_without_marks(thing: Any) -> Any:
    """Like `all_without_control`, but keep C0 and DEL, which later checks reject with an error that names the field."""
    return _all(thing, _MARKS)


def _all(thing: Any, removed: re.Pattern[str]) -> Any:
    if isinstance(thing, str):
        return removed.sub("", thing)
    if isinstance(thing, dict):
        return {_name(key, removed): _all(value, removed) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        if _NO_TEXTS.issuperset(map(type, thing)):
            # Most values in requests are numbers.
            return thing
        return [_all(item, removed) for item in thing]
    return thing


def _name(key: str, removed: re.Pattern[str]) -> str:
    """Return the cleaned key. The result depends only on the key, so that it is the same in every batch.

    A digest of the original key replaces the first run of removed characters, so that different keys stay different.
    """
    found = removed.search(key)
    if found is None:
        return key
    cleaned = removed.sub("", key)
    whole = key.encode("utf-8", "surrogatepass")
    sign = "~" + blake2b(whole, digest_size=SIGN_BYTES).hexdigest()
    at = min(found.start(), MAX_NAME_LENGTH - len(sign))
    signed = cleaned[:at] + sign + cleaned[at:]
    # A key that is too long even without the digest stays too long, and is rejected later.
    return signed if len(cleaned) > MAX_NAME_LENGTH else signed[:MAX_NAME_LENGTH]


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
