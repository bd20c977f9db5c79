"""Tokens and passwords: created, distinguished by their form, issued and revoked.

Imports `store`, `errors`, `limits`; argon2 inside functions. Start reading in `credentials.py`. Who may do what is
decided in `web/auth`.
"""
