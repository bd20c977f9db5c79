"""Incidents of all runs at `/incidents`, and acknowledgements: JSON API, forms, view.

Imports `store.incident_groups`, `web.rendering`, `web.runs`. Start reading in `api.py`.
"""
