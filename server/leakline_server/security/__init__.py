"""Tokens and passwords: creation, validation, issuing and revocation.

It imports `store`, `errors` and `limits`, and argon2 inside functions. Start reading in `credentials.py`. Permissions
are decided in `web/auth`.
"""
