"""Declared limits, expected counts and promises made by fixes; the verdict lists the checks of all three.

This package imports the modules of `analysis` and `analysis.statistics`. Start reading in `checks.py` (the
evaluator); `declared_limits.py` and `expected_counts.py` read what the program or a person declared.
"""
