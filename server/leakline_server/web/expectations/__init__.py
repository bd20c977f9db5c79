"""Expected counts: JSON API, forms, and the section on a run's page.

Imports `store.alerts`, `leakline.analysis`, `web.rendering`. Start reading in `api.py`.
"""
