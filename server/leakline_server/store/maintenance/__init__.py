"""Retention, deletion, backup, disk space, and stored bytes that are corrupt.

Imports any package of `store`. Start reading in `retention_policy.py`; `run_deletion.py` deletes.
"""
