"""Device memory as reported by torch, the NVIDIA driver and Metal.

Imports `snapshot`; torch and NVML inside functions. Start reading in `torch_devices.py` and `nvml.py`.
"""
