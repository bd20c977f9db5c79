"""The page `/alerts`: rules, webhooks, deliveries.

Imports `store.alerts`, `web.rendering`, `web.rules`, `web.webhooks`. Start reading in `pages.py`.
"""
