"""Up to ten runs on one axis at `/overlay`.

Imports `store`, `charts`, `web.rendering`, `web.run_page`. Start reading in `pages.py`.
"""
