"""Decides which alerts a change of a run causes, and collects their facts. Pure, except for rows passed in.

Imports `store`, `limits`, `leakline`. Start reading in `incident_alerts.py`.
"""
