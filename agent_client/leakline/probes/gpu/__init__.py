"""Device memory as torch, the NVIDIA driver and Metal count it.

Imports `snapshot`; torch and NVML inside functions. Start reading in `cuda.py` and `nvml.py`.
"""
