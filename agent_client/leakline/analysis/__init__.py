"""The leak analysis: pure functions of a run's history, shared by the report, the server and the CI gate.

This package imports only `snapshot`, `text_format` and the standard library, and neither reads a clock nor does I/O.
Start reading in `examination.py` (`examine`), `timeline.py` (the input of every step) and `status.py` (when a leak
is suspected or confirmed).
"""

from .assertions.checks import check_counts
from .assertions.expected_counts import stable_counts
from .comparison.run_comparison import compare, environment_changes
from .examination import examine
from .findings.growth_tables import container_fill, type_growth
from .memory.memory_by_phase import phase_accounts
from .results import to_json
from .run_history import RunHistory, history_from_batches

__all__ = [
    "RunHistory",
    "check_counts",
    "compare",
    "container_fill",
    "environment_changes",
    "examine",
    "history_from_batches",
    "phase_accounts",
    "stable_counts",
    "to_json",
    "type_growth",
    "verdict_json",
]

# The public name of `to_json`, for callers that serialize a verdict.
verdict_json = to_json
