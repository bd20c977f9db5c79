"""Decides which alerts a change in a run causes, and collects the facts for each alert. Pure: it reads only the rows
passed in.

It imports `store`, `limits` and `leakline`. Start reading in `incident_alerts.py`.
"""
