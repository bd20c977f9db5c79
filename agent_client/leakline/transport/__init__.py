"""A snapshot's path to the server: recorder, spool on disk, sender, HTTP, recovery of orphaned spools.

Imports `snapshot`, `errors`, `settings`, `runtime`, `console`; never `core` or `sampling`. Start
reading in `recorder.py` (to the disk) and `sender.py` (to the server).
"""
