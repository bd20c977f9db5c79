"""Characters that steer how text is shown, and are never part of what is meant. They are removed from every text.

C0 and DEL, C1, the line and paragraph separators, the byte order mark, and the marks that turn the direction of what
follows: with those, ``txt.exe`` reads as ``exe.txt``. Text of languages that are written from right to left needs none.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

from .limits import MAX_NAME_LENGTH

# Of a hundred thousand names that would become one, two share a sign once in sixty thousand batches.
SIGN_BYTES: Final = 6

_STEERING: Final = r"\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
# A character that a text needs to say something, for the schema of the API.
SAYS_SOMETHING: Final = rf"[^\s\x00-\x1f\x7f{_STEERING}]"
_CONTROL: Final = re.compile(rf"[\x00-\x1f\x7f{_STEERING}]+")
# Of a text of several lines.
_IN_LINES: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f{_STEERING}]+")
_MARKS: Final = re.compile(f"[{_STEERING}]+")
# The same, encoded.
_ENCODED: Final = re.compile(
    rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xef\xbb\xbf"
)
_NO_TEXTS: Final = frozenset({int, float, bool, type(None)})


def without_control(text: str) -> str:
    return _CONTROL.sub("", text)


def lines_without_control(text: str) -> str:
    """Tabs and line feeds stay."""
    return _IN_LINES.sub("", text)


def may_steer(body: bytes) -> bool:
    """Whether JSON can hold such a character: as it is, or behind a backslash. Most bodies need no look at each."""
    if b"\\" in body or b"\x7f" in body:
        return True
    return not body.isascii() and _ENCODED.search(body) is not None


def all_without_control(thing: Any) -> Any:
    """Every text and key of a JSON value. Keys that differ stay different: see `_name`."""
    return _all(thing, _CONTROL)


def all_without_marks(thing: Any) -> Any:
    """The same, but C0 and DEL stay, which whoever reads the value refuses by name."""
    return _all(thing, _MARKS)


def _all(thing: Any, removed: re.Pattern[str]) -> Any:
    if isinstance(thing, str):
        return removed.sub("", thing)
    if isinstance(thing, dict):
        return {_name(key, removed): _all(value, removed) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        if _NO_TEXTS.issuperset(map(type, thing)):
            # Numbers are most of what is ever sent.
            return thing
        return [_all(item, removed) for item in thing]
    return thing


def _name(key: str, removed: re.Pattern[str]) -> str:
    """What a key becomes, whatever its neighbours: else one sent again, or in another batch, were another's.

    Where the first run of characters is removed stands a sign of the whole key, so that two stay two.
    """
    found = removed.search(key)
    if found is None:
        return key
    cleaned = removed.sub("", key)
    whole = key.encode("utf-8", "surrogatepass")
    sign = "~" + blake2b(whole, digest_size=SIGN_BYTES).hexdigest()
    at = min(found.start(), MAX_NAME_LENGTH - len(sign))
    signed = cleaned[:at] + sign + cleaned[at:]
    # One that was too long without it stays so, and is refused by name.
    return signed if len(cleaned) > MAX_NAME_LENGTH else signed[:MAX_NAME_LENGTH]
