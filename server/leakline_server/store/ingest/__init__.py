"""Accepting batches exactly once: duplicates, clock skew, cardinality limits, project quotas.

Imports `store.runs`, `series`, `details`, `maintenance`. Start reading in `inbox.py`.
"""
