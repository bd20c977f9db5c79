"""Tokens and passwords: creation, validation, issuing and revocation.

Imports `store`, `errors`, `limits`; argon2 inside functions. Start reading in `credentials.py`. Permissions are decided
in `web/auth`.
"""
