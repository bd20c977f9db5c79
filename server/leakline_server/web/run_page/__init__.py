"""The page of a run: reads the store, gets the analysis, builds one view and renders it.

It has one module per section and imports `store`, `charts`, `alerts`, `leakline` and other features
of `web`. Start reading in `pages.py`, then `view.py`.
"""
