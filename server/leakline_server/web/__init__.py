"""Routes, pages and streams: one package for each feature, with `api.py` (JSON), `pages.py` (HTML), `view.py` (pure).

Imports everything but SQLAlchemy and `workers`. Start reading in `services.py`, then `run_page/pages.py`.
"""
