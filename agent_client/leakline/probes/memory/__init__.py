"""Memory as the operating system and the C allocator count it: process, peaks, container limits, machine.

Imports `snapshot`; psutil inside functions. Start reading in `process_memory.py`.
"""
