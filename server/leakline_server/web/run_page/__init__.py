"""The page of a run: read the store, ask the analysis, build one view, render. One module for each section.

Imports `store`, `charts`, `alerts`, `leakline`, and other features of `web`. Start reading in `pages.py`, then
`view.py`.
"""
