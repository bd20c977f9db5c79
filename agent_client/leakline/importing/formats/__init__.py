"""Readers of other tools' logs, one module per format.

Imports `importing` and `snapshot`. Start reading in `leakline/importing/log_reader.py`, which detects the format and
chooses the reader.
"""
