"""The folder that `leakline run` puts on PYTHONPATH: `site` imports `sitecustomize` from it."""
