"""Memory as counted by the operating system and the C allocator: process, peaks, container limits, machine.

Imports `snapshot`; psutil inside functions. Start reading in `process_memory.py`.
"""
