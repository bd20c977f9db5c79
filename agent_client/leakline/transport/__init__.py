"""Delivers snapshots to the server: recorder, spool on disk, sender, HTTP, recovery of orphaned spools.

This package imports `snapshot`, `errors`, `settings`, `runtime` and `console`, but never `core` or `sampling`. Start
reading in `recorder.py` (which writes to disk) and `sender.py` (which sends to the server).
"""
