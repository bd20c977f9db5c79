"""Live updates of a page as server-sent events.

Imports `live_updates`, `store`. Start reading in `event_stream.py`.
"""
