"""Points and a verdict as columns and annotations of charts; the browser draws them.

Pure: imports `leakline.analysis` and msgspec. Start reading in `chart_builder.py`.
"""
