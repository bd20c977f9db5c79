"""A name of `text_format` for `importing/slips.py`."""

from .text_format import format_bytes as format_bytes
