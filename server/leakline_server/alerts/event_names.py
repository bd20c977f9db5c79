"""The events that are told, by the contract's names."""

from __future__ import annotations

from typing import Final

SUSPECTED: Final = "incident.suspected"
CONFIRMED: Final = "incident.confirmed"
RECOVERED: Final = "incident.recovered"
RESOLVED: Final = "incident.resolved"
VIOLATED: Final = "contract.violated"
OOM_RISK: Final = "oom.risk"
SILENT: Final = "run.silent"
KILLED: Final = "run.killed"
FINISHED: Final = "run.finished"
FIRED: Final = "rule.fired"

# After these an incident is open, and as certain as it becomes.
OPEN: Final = frozenset({SUSPECTED, CONFIRMED, VIOLATED})
CERTAIN: Final = frozenset({CONFIRMED, VIOLATED})
