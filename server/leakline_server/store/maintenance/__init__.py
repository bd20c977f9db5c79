"""Retention, run deletion, disk space, sizes and corruption.

It imports the other packages of `store`. Start reading in `retention_policy.py` and `run_deletion.py`.
"""
