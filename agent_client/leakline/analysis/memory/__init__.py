"""Memory by phase and by kind: the process, devices, child processes, reference cycles, V8.

This package imports `analysis.statistics`, `attribution`. Start reading in `memory_by_phase.py`.
"""
