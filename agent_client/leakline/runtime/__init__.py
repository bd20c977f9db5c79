"""Threads, the error boundary and file descriptors for code that runs inside the user's process.

This package imports only the standard library, and every other package may import it. Start reading
in `error_boundary.py`.
"""
