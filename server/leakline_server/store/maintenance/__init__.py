"""Retention, run deletion, disk space, sizes and corruption.

It may import any other package of `store`. Start reading in `retention_policy.py` and `run_deletion.py`.
"""
