"""Finds the holders of objects and the names on the path from a root, for example a module global or a local.

This package imports `probes.heap`. Start reading in `referrers.py`.
"""
