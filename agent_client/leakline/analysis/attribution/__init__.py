"""From everything that grows to causes: candidates, and how growth is split among them.

Imports `analysis.statistics`, `memory`, `assertions`. Start reading in `candidates.py`, then `causes.py`;
`growth_split.py` and `native_owners.py` are about native memory.
"""
