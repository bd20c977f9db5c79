"""Code shared by all pages: templates and their contexts, number formats, tables with links, assets.

Imports `charts`, `leakline.analysis` and no other feature of `web`. Start reading in
`templating.py`.
"""
