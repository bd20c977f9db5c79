"""Memory as counted by the operating system and the C allocator: process, peaks, container limits and machine.

This package imports `snapshot` and, inside functions, psutil. Start reading in `process_memory.py`.
"""
