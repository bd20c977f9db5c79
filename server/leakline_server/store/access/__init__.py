"""Rows of tokens, sign-ins and sessions.

Imports `store.engine` and `limits`. Start reading in `tokens.py`.
"""
