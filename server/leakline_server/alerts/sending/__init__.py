"""Sending of a message: address check, signature, POST, retry schedule.

Imports `alerts`, `limits`; apprise inside functions. Start reading in `send_message.py`.
"""
