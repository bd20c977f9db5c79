"""What all pages share: templates, number formats, tables, links, assets.

Imports `charts`, `leakline.analysis` and no other feature of `web`. Start reading in `templating.py`.
"""
