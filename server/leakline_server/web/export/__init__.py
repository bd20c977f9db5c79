"""Runs and pages as files: JSON, CSV, Parquet, Markdown, self-contained HTML.

Imports `run_export`, `store`, `leakline.report`, `web.rendering`, `web.run_page`. Start reading in
`api.py` and `html_bundle.py`.
"""
