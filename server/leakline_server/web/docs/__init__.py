"""The documents below `/docs`: Markdown to HTML.

Imports `paths`, `web.rendering`, markdown-it. Start reading in `pages.py`.
"""
