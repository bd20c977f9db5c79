"""Ingest: accepting batches exactly once, duplicates, clock skew, cardinality limits and project quotas.

It imports `store.runs`, `series`, `details` and `maintenance`. Start reading in `inbox.py`.
"""
