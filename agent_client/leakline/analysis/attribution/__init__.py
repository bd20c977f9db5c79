"""From everything that grows to causes: candidates, and how growth is split among them.

Imports `analysis.statistics`, `memory`, `findings`, `assertions`. Start reading in `candidates.py`, then
`causes.py`; `unattributed.py` is about native memory.
"""
