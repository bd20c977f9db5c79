"""Decides which alerts a change in a run causes, and collects their facts. Pure: reads only the rows passed in.

Imports `store`, `limits`, `leakline`. Start reading in `incident_alerts.py`.
"""
