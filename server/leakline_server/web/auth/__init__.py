"""Authentication, permissions, origin check, sign-in and rate limits.

Imports `security`, `store`, `web.rendering`. Start reading in `middleware.py`; `authenticator.py`
looks up tokens and sessions, and `permissions.py` decides what a principal may do.
"""
