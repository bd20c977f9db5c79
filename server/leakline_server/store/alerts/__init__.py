"""Rows of alerts, of webhooks, of deliveries with their attempts, and of the assertions that people set.

Imports `store.runs`, and `leakline.analysis`. Start reading in `alert_rows.py`, `deliveries.py` and
`assertions.py`.
"""
