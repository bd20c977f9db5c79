"""Outgoing messages: address check, signature, POST, retry schedule.

Imports `alerts`, `limits`; apprise inside functions. Start reading in `send_message.py`.
"""
