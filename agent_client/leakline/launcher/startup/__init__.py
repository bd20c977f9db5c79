"""The folder that `leakline run` puts on PYTHONPATH: `site` imports `sitecustomize` from it.

Imports the standard library, and `launcher` inside functions. Start reading in `sitecustomize.py`.
"""
