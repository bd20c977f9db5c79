"""Checks of declared limits, expected counts and the promises of fixes, for the verdict.

This package imports the modules of `analysis` and `analysis.statistics`. Start reading in `checks.py` (the
evaluator); `declared_limits.py` and `expected_counts.py` read what the program or a person declared.
"""
