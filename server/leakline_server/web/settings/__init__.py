"""The page `/settings`: health, storage, retention and tokens.

Imports `store`, `config`, `security`, `web.tokens`, `web.rendering`. Start reading in `pages.py`.
"""
