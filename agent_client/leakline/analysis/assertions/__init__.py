"""Declared limits, expected counts and promises of fixes, all checked in one list of the verdict.

This package imports the modules of `analysis` and `analysis.statistics`. Start reading in `checks.py` (the
evaluator); `declared_limits.py` and `expected_counts.py` read what the program or a person declared.
"""
