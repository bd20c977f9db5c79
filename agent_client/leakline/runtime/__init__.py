"""Building blocks of code that runs inside somebody else's process: threads, the error boundary, the GIL.

Imports the standard library only; every other package may import it. Start reading in `error_boundary.py`.
"""
