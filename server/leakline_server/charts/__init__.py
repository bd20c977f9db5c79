"""Converts points and a verdict into chart columns and annotations, which the browser draws.

Pure: it imports only `leakline.analysis` and msgspec. Start reading in `chart_builder.py`.
"""
