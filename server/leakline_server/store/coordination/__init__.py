"""What several servers on one database agree on: leases, changes, requests to processes, the file lock.

Imports `store.runs` and `limits`. Start reading in `leases.py` and `change_queries.py`.
"""
