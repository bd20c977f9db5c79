"""The leak analysis: pure functions on the history of a run, on the standard library alone.

The offline report, the server, the comparison and the CI gate call the same functions.
"""

from .assertions.checks import check_counts
from .books import books
from .comparison import compare, environment_changes
from .growth import store_fill, type_growth
from .history import RunHistory, history_from_batches
from .learned import steady_counts
from .results import to_json
from .verdict import examine

__all__ = [
    "RunHistory",
    "books",
    "check_counts",
    "compare",
    "environment_changes",
    "examine",
    "history_from_batches",
    "steady_counts",
    "store_fill",
    "to_json",
    "type_growth",
    "verdict_json",
]

# The verdict as the contract writes it.
verdict_json = to_json
