"""Probes, one module per data source. A probe reads its source and returns metrics, or nothing.

Imports `snapshot` and, inside functions, torch, numpy, psutil and NVML. Start reading in `memory/process_memory.py`.
`child_memory.py` reads the child processes, `tracked_containers.py` and `growing_containers.py` read containers of the
program, and `native_module.py` loads the part written in C.
"""
