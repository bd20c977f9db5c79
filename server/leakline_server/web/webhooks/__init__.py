"""Webhooks and their deliveries in the JSON API.

Imports `alerts.sending`, `store.alerts`. Start reading in `api.py`.
"""
