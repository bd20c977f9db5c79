"""A sum as people write it -- "16 agents × 32 steps × 9 MB = about 27 GB" -- read into numbers with their ranges.

Words are skipped, brackets, ranges and thousands separators are understood, and what is not is refused whole: a sum
that is half understood would be answered wrongly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_TEXT: Final = 500
_MAX_NUMBER: Final = 1e30
_MAX_BRACKETS: Final = 20

UNITS: Final = {
    "b": 1, "byte": 1, "bytes": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4, "pb": 1000**5,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4, "pib": 1024**5,
    # A letter alone is a size where memory is spoken of; "45M parameters" is a count.
    "g": 1000**3, "t": 1000**4,
}  # fmt: skip
_MANY: Final = {"k": 1e3, "m": 1e6, "thousand": 1e3, "million": 1e6, "billion": 1e9, "%": 0.01}

# How signs come out of a file that was read in the wrong encoding, and the signs that mean the same.
_SIGNS: Final = (
    ("Ã—", "×"), ("Ã\x97", "×"), ("√ó", "×"), ("â€“", "-"), ("â‰ˆ", "≈"), ("·", "×"), ("⋅", "×"), ("✕", "×"),
    ("–", "-"), ("—", " "), ("−", "-"), ("÷", "/"), ("->", "="), ("→", "="), ("⇒", "="), ("\u00a0", "\u202f"),
)  # fmt: skip
_DIGITS: Final = r"\d{1,3}(?:[,'_\u202f]\d{3})+(?:\.\d+)?|(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?"
_WORD: Final = "|".join(sorted((*UNITS, *(name for name in _MANY if name != "%")), key=len)[::-1])
_UNIT: Final = rf"(?:[ \u202f-]?(?:%|(?:{_WORD})(?![\w])))?"
_ABOUT: Final = r"(?:~|≈|about|around|approx\.?|approximately|roughly|circa|ca\.)?\s*"
_TOKEN: Final = re.compile(
    rf"(?P<range>(?:{_DIGITS}){_UNIT}\s*(?:-|\bto\b)\s*{_ABOUT}(?:{_DIGITS}){_UNIT})"
    rf"|(?P<number>(?:{_DIGITS}){_UNIT}(?:\+(?![\s~]*[\d(]))?)"
    r"|(?P<equals>=[=\s]*≈?|≈(?=[\s~]*\d))"
    r"|(?P<times>[×*]|(?<![A-Za-z_])[xX](?![A-Za-z_])|\btimes\b)"
    r"|(?P<plus>\+(?=\s|[\d(]))"
    r"|(?P<over>/(?=[\s~]*[\d(]))"
    r"|(?P<open>\()|(?P<close>\))"
    r"|(?P<minus>-(?=[\s~]*[\d.]))"
    r"|(?P<skip>[^\W\d][\w.\[\]-]*|/|(?:[\s,:;!?'\"`~\[\]#•&]|\.(?!\d)|-(?![\s~]*[\d.]))+)",
    re.IGNORECASE,
)
_ONE: Final = re.compile(rf"({_DIGITS})({_UNIT})", re.IGNORECASE)
# "= 136 GB (explains the crash at 175 GB)"
_REMARK: Final = re.compile(r"(?<![×*+/=xX(\s])\s*\(\s*[A-Za-z][^()]*\)[\s.!]*$")
_WORDS: Final = re.compile(r"(?:[ /]*[^\W\d][\w.\[\]-]*){0,3}")
# Letters right behind a number that are no unit. "208x100" is a sign.
_GLUED: Final = re.compile(r"(?![xX](?:[\s\d~(]|$))[A-Za-z_]+")
_BULLET: Final = re.compile(r"^\s*[-*•]+\s+")
EXAMPLE: Final = "208 x 100 KB = 20 GB"


class NotUnderstood(ValueError):
    """One line: which part of the sum was not understood, and what to write."""


@dataclass(frozen=True, slots=True)
class Amount:
    """``low`` and ``high`` are the same where no range was given. A size is in bytes, anything else counts things."""

    low: float
    high: float
    is_size: bool

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Side:
    """What stands on one side of an equals sign. ``first`` and ``factors`` are the numbers it is made of.

    ``is_sum``: whether there is anything to compute. ``is_product``: nothing but numbers multiplied.
    """

    said: str
    amount: Amount
    factors: tuple[Amount, ...]
    is_sum: bool
    is_product: bool


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    said: str


def read_sum(text: str) -> tuple[Side, ...]:
    """The sides of a sum from left to right. Raises NotUnderstood."""
    plain = _plain(text)
    sides: list[list[tuple[_Token, int, int]]] = [[]]
    for token, start, end in _tokens(plain):
        if token.kind == "equals":
            sides.append([])
        else:
            sides[-1].append((token, start, end))
    return tuple(_side(plain, tokens) for tokens in sides)


def _plain(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise NotUnderstood(
            f"the text is longer than {MAX_TEXT} characters; give one sum at a time"
        )
    for damaged, sign in _SIGNS:
        text = text.replace(damaged, sign)
    if re.search(r"\d\s*(?:\*\*|\^)\s*\d", text):
        raise NotUnderstood("powers are not understood; write the number out")
    if text.count("(") > _MAX_BRACKETS:
        raise NotUnderstood("too many brackets")
    # What is left of "**" is bold print.
    plain = "".join(c if c.isprintable() or c == "\u202f" else " " for c in text.replace("**", " "))
    return _REMARK.sub("", _BULLET.sub("", plain))


def _tokens(text: str) -> Iterator[tuple[_Token, int, int]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotUnderstood(f"the sign {text[at]!r} is not understood; use x, +, / and =")
        kind = found.lastgroup or "skip"
        if kind == "minus":
            raise NotUnderstood(
                f"what the minus before {text[at + 1 : at + 12].strip()!r} means is not understood; a range is "
                "8-10 MB, and nothing is subtracted"
            )
        if kind in ("number", "range") and (glued := _GLUED.match(text, found.end())):
            raise NotUnderstood(
                f"what {glued.group()!r} behind {found.group()!r} means is not understood; units are KB, KiB, MB, …"
            )
        if kind != "skip":
            yield _Token(kind, found.group()), at, found.end()
        at = found.end()


def _side(text: str, tokens: list[tuple[_Token, int, int]]) -> Side:
    kinds = [token.kind for token, _, _ in tokens]
    if not any(kind in ("number", "range") for kind in kinds):
        raise NotUnderstood(f"a number is missing; write it as {EXAMPLE}")
    reader = _Reader([token for token, _, _ in tokens])
    amount = reader.whole()
    said = " ".join(text[tokens[0][1] : _end_of_words(text, tokens[-1][2])].split())
    signs = {kind for kind in kinds if kind in ("times", "plus", "over")}
    return Side(said.strip(" ,;:"), amount, tuple(reader.numbers), bool(signs), signs <= {"times"})


def _end_of_words(text: str, at: int) -> int:
    """Where the words behind the last number end: they say what is counted."""
    found = _WORDS.match(text, at)
    return found.end() if found else at


class _Reader:
    """Reads tokens by the usual rules: brackets first, then x and /, then +."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = _without_empty_brackets(tokens)
        self._at = 0
        self.numbers: list[Amount] = []

    def whole(self) -> Amount:
        amount = self._added()
        left = self._next()
        if left is not None:
            before = self._tokens[self._at - 1].said.strip()
            raise NotUnderstood(
                f"there is no sign between {before!r} and {left.said.strip()!r}; write x, + or / there"
            )
        return amount

    def _next(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _takes(self, *kinds: str) -> str | None:
        token = self._next()
        if token is None or token.kind not in kinds:
            return None
        self._at += 1
        return token.kind

    def _added(self) -> Amount:
        total = self._multiplied()
        while self._takes("plus"):
            more = self._multiplied()
            if total.is_size != more.is_size:
                raise NotUnderstood("a size and a count cannot be added; give each part its unit")
            total = Amount(total.low + more.low, total.high + more.high, total.is_size)
        return _within_reason(total)

    def _multiplied(self) -> Amount:
        product = self._one()
        while sign := self._takes("times", "over"):
            factor = self._one()
            product = _times(product, factor) if sign == "times" else _over(product, factor)
        return _within_reason(product)

    def _one(self) -> Amount:
        if self._takes("open"):
            amount = self._added()
            if not self._takes("close"):
                raise NotUnderstood("a bracket is not closed, or a sign is missing inside it")
            return amount
        token = self._next()
        if token is None or token.kind not in ("number", "range"):
            where = "at the end" if token is None else f"before {token.said.strip()!r}"
            raise NotUnderstood(f"a number is missing {where}")
        self._at += 1
        self.numbers.append(_amount(token.said))
        return self.numbers[-1]


def _without_empty_brackets(tokens: list[_Token]) -> list[_Token]:
    """Brackets around words only are remarks."""
    kept: list[_Token] = []
    for token in tokens:
        if token.kind == "close" and kept and kept[-1].kind == "open":
            kept.pop()
        else:
            kept.append(token)
    return kept


def _times(a: Amount, b: Amount) -> Amount:
    if a.is_size and b.is_size:
        raise NotUnderstood("two sizes are multiplied; one of them should be a count")
    return Amount(a.low * b.low, a.high * b.high, a.is_size or b.is_size)


def _over(a: Amount, b: Amount) -> Amount:
    if b.low <= 0:
        raise NotUnderstood("a division by zero")
    if b.is_size and not a.is_size:
        raise NotUnderstood("a count is divided by a size")
    return Amount(a.low / b.high, a.high / b.low, a.is_size and not b.is_size)


def _within_reason(amount: Amount) -> Amount:
    if not (math.isfinite(amount.high) and amount.high <= _MAX_NUMBER):
        raise NotUnderstood("the numbers are too large to be meant")
    return amount


def _amount(said: str) -> Amount:
    """``8-10 MB``, ``100 KB``, ``13+``, ``45M``."""
    parts = [_number(found) for found in _ONE.finditer(said)]
    low, high = parts[0], parts[-1]
    if len(parts) == 2 and low[1] == "" and high[1] != "":
        low = (low[0] * _scale(high[1]), high[1])
    elif low[1]:
        low = (low[0] * _scale(low[1]), low[1])
    top = high[0] * _scale(high[1])
    is_size = high[1] in UNITS
    if is_size != (low[1] in UNITS):
        raise NotUnderstood(f"the ends of the range {said.strip()!r} have different units")
    if low[0] > top:
        raise NotUnderstood(f"the range {said.strip()!r} runs backwards")
    return _within_reason(Amount(low[0], top, is_size))


def _number(found: re.Match[str]) -> tuple[float, str]:
    digits = re.sub(r"[,'_\u202f]", "", found[1])
    return float(digits), found[2].strip(" -\u202f").lower()


def _scale(unit: str) -> float:
    return UNITS.get(unit) or _MANY.get(unit, 1.0)
