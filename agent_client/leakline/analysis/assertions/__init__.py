"""Declared limits, expected counts and promises of fixes: one model, one list of checks in the verdict.

Imports the modules of `analysis` and `analysis.statistics`. Start reading in `checks.py` (the evaluator);
`declared_limits.py` and `expected_counts.py` read what the program or a person declared.
"""
