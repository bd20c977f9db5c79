"""Device memory as reported by torch, the NVIDIA driver and Metal.

This package imports `snapshot` and, inside functions, torch and NVML. Start reading in `torch_devices.py` and
`nvml.py`.
"""
