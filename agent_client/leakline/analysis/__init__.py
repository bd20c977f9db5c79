"""The leak analysis: pure functions on the history of a run. The report, the server and the CI gate call the same.

Imports `snapshot`, `text_format` and the standard library only: no clock, no I/O. Start reading in `examination.py`
(`examine`), `timeline.py` (what every step reads) and `status.py` (when a leak is suspected or confirmed).
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

# The verdict as the contract writes it.
verdict_json = to_json
