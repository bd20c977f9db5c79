"""Which alerts a change of a run causes, and their facts. Pure, except for rows that are passed in.

Imports `store`, `limits`, `leakline`. Start reading in `incident_alerts.py`.
"""
