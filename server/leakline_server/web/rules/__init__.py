"""Alert rules: JSON API, forms, and their section of `/alerts`.

Imports `alerts.rules`, `store.alerts`, `web.alerts`, `web.rendering`. Start reading in `api.py`.
"""
