"""Formats of webhook messages, one file each: facts of an alert in, the body of the POST out. Pure.

Imports `leakline.text_format`. Start reading in `message.py`; a new format is a file with `render` and a row of
`FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from .message import Message
from .slack import render as render_slack
from .standard import render as render_standard

# Format name -> what makes the body (UTF-8, at most message.MAX_BODY_BYTES).
FORMATS: Final[Mapping[str, Callable[[Message], bytes]]] = {
    "standard": render_standard,
    "slack": render_slack,
}
