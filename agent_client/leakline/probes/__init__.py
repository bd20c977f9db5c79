"""Probes: one file for each source of numbers. A probe reads and returns metrics, or nothing.

Imports `snapshot` and, inside functions, torch, numpy, psutil and NVML. Start reading in
`memory/process_memory.py`; `native_module.py` loads the part that is written in C.
"""
