"""Finds the holders of objects: referrers, named roots (for example module globals and locals), and the names on the
path.

This package imports `probes.heap`. Start reading in `referrers.py`.
"""
