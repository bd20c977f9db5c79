"""Outgoing messages: address checks, signatures, POST requests and the retry schedule.

Imports `alerts`, `limits`; apprise inside functions. Start reading in `send_message.py`.
"""
