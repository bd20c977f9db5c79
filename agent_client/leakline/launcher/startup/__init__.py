"""Folder that `leakline run` adds to PYTHONPATH, so that `site` imports its `sitecustomize` module.

Imports the standard library, and `launcher` inside functions. Start reading in `sitecustomize.py`.
"""
