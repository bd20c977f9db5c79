"""Converts points and a verdict into chart columns and annotations, which the browser draws.

Pure: imports `leakline.analysis` and msgspec. Start reading in `chart_builder.py`.
"""
