"""The server's background threads: analysis, alert evaluation, delivery, sealing, compaction, retention.

This package imports `store`, `alerts`, `live_updates`, `leakline`. Start reading in `examination_worker.py` and
`delivery_worker.py`.
"""
