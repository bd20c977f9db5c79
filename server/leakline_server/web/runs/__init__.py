"""Runs: JSON API, the list of runs at `/`, deletion, registration, storage use.

Imports `store`, `ingest`, `web.auth`, `web.rendering`. Start reading in `api.py` and `pages.py`;
`registration.py` turns errors of the store into responses.
"""
