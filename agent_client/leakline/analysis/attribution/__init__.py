"""Attribution of growth: find the counts that grow, group them into causes, and split the growth among them.

This package imports `analysis.statistics`, `memory`, `assertions`. Start reading in `candidates.py`, then
`causes.py`; `growth_split.py` and `native_owners.py` are about native memory.
"""
