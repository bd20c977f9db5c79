"""Memory and names of the child processes.

Imports `probes.memory`, `snapshot`. Start reading in `child_memory.py`.
"""
