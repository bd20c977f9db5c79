"""Probes, one module per data source. A probe returns its source's metrics, or {} if the source is not available.

This package imports `snapshot` and, inside functions, torch, numpy, psutil and NVML. Start reading in
`memory/process_memory.py`. `child_memory.py` reads the child processes, `tracked_containers.py` and
`growing_containers.py` read the program's containers, and `native_module.py` loads the module written in C.
"""
