"""The few lines that people see on stderr: notices, the status line, a snapshot that is printed.

Imports `snapshot`, `text_format`; `analysis` lazily. Start reading in `notices.py`.
"""
