"""Two runs, or a run before and after a fix.

Imports every other package of the analysis but `forecast`. Start reading in `run_comparison.py`.
"""
