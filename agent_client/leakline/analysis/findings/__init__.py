"""User-facing results: findings with advice, priority and code location, and the verdict's summary.

This package imports every other package of the analysis except `forecast`. Start reading in `finding_builder.py`.
"""
