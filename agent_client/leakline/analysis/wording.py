"""Names of `text_format` for `estimates.py`."""

from ..text_format import count_of as count_of
from ..text_format import format_bytes as format_bytes
from ..text_format import format_count as format_count
from ..text_format import short_name as short_name
