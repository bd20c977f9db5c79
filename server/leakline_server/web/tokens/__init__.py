"""Tokens: JSON API, and their section of `/settings`.

Imports `security`, `store.access`, `web.rendering`. Start reading in `api.py`.
"""
