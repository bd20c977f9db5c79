"""Who makes a request and what it may do: authentication, permissions, origin check, sign-in, rate limits.

Imports `security`, `store`, `web.rendering`. Start reading in `middleware.py`; `authenticator.py` looks up tokens
and sessions, `permissions.py` decides.
"""
