"""Outgoing messages: address checks, signatures, POST requests and the retry schedule.

It imports `alerts` and `limits`, and apprise inside functions. Start reading in `send_message.py`.
"""
