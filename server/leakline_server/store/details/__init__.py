"""What is stored next to numbers: events, large objects, holders, log lines; snapshots as rows.

Imports `store.series`, `ingest`, `runs`, `downsampling`, `maintenance`. Start reading in `details.py`.
"""
