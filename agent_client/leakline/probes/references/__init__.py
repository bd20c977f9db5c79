"""Holders of objects: referrers, roots such as module globals and locals, and the names on the path.

Imports `probes.heap`. Start reading in `referrers.py`.
"""
