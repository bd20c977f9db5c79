"""Probes: one file for each source of numbers. A probe reads and returns metrics, or nothing.

Imports `snapshot` and, inside functions, torch, numpy, psutil and NVML. Start reading in
`memory/process_memory.py`; `child_memory.py` reads the child processes, `tracked_containers.py` and
`growing_containers.py` what the program holds, and `native_module.py` loads the part that is written in C.
"""
