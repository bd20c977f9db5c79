"""What all pages share: templates and what they may use, number formats, tables with links, assets.

Imports `charts`, `leakline.analysis` and no other feature of `web`. Start reading in `templating.py`.
"""
