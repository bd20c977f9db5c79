"""A run's page. The routes read the store and the analysis results, build one view and render it.

The package has one module per section and imports `store`, `charts`, `alerts`, `leakline` and other features
of `web`. Start reading in `pages.py`, then `view.py`.
"""
