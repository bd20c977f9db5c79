"""Containers that grow, that the program declared with `track`, and figures that pyplot keeps.

Imports `probes.heap`, `probes.references`, `snapshot`. Start reading in `growing_containers.py`.
"""
