"""Conversion of points and a verdict to columns and annotations of charts, which the browser draws.

Pure: imports `leakline.analysis` and msgspec. Start reading in `chart_builder.py`.
"""
