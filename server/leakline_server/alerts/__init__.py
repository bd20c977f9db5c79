"""Decides which alerts a change in a run causes, and collects the facts for each alert. Pure: reads only the rows
passed in.

Imports `store`, `limits`, `leakline`. Start reading in `incident_alerts.py`.
"""
