"""Routes, pages and streams.

A large feature is a package with `api.py` (JSON), `pages.py` (HTML) and `view.py` (no I/O); a small
feature is a module. The package imports any other package except SQLAlchemy and `workers`. Start
reading in `services.py`, then `run_page/pages.py`.
"""
