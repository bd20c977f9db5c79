"""User-facing results: findings with advice, priority and code location, and the sentence of the verdict.

This package imports every other package of the analysis except `forecast`. Start reading in `finding_builder.py`.
"""
