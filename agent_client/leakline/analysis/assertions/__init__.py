"""Declared limits, accepted counts and promises of fixes: one model, one list of checks in the verdict.

Imports `analysis.statistics`, `attribution`. Start reading in `checks.py` (the evaluator); `declared.py` and
`fixes.py` read what the program or a person declared.
"""
