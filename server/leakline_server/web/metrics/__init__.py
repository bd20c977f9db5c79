"""`/metrics` in Prometheus' text format: our own health, and headline numbers of live runs.

Imports `store`, prometheus_client. Start reading in `api.py`.
"""
