"""Incidents of all runs at `/incidents`, and acknowledgements: JSON API, forms, view.

Imports `store.incidents`, `web.rendering`, `web.runs`. Start reading in `api.py`.
"""
