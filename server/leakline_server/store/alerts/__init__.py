"""Stored alerts, webhooks, deliveries with their attempts, and assertions declared on the server.

It imports `store.runs` and `leakline.analysis`. Start reading in `alert_rows.py`, `deliveries.py` and `assertions.py`.
"""
