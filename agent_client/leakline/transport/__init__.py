"""Brings snapshots to the server: recorder, spool on disk, sender, HTTP, recovery of orphaned spools.

Imports `snapshot`, `errors`, `settings`, `runtime`, `console`; never `core` or `sampling`. Start
reading in `recorder.py` (which writes to disk) and `sender.py` (which sends to the server).
"""
