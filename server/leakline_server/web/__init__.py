"""Routes, pages and streams: one package for each large feature, with `api.py` (JSON), `pages.py` (HTML),
`view.py` (pure), and one module for each small one.

Imports everything but SQLAlchemy and `workers`. Start reading in `services.py`, then `run_page/pages.py`.
"""
