"""Converts points and a verdict to chart columns and annotations, which the browser draws.

Pure: imports `leakline.analysis` and msgspec. Start reading in `chart_builder.py`.
"""
