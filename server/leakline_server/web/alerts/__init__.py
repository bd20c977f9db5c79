"""The page `/alerts`: rules, webhooks, deliveries.

Imports `store.alerts`, `web.rendering`, `web.rules`, `web.webhook_api`. Start reading in `pages.py`.
"""
