"""Threads, the error boundary and file descriptors for code that runs inside the user's process.

Imports the standard library only; every other package may import it. Start reading in `error_boundary.py`.
"""
