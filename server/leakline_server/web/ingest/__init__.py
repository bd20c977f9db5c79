"""The routes that receive data: batches of our clients, and OTLP metrics.

Imports `ingest`, `store`, `web.auth`, `web.runs`. Start reading in `api.py`.
"""
