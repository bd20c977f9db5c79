"""Readers of logs that other tools have written, one file for each format.

Imports `importing` and `snapshot`. Start reading in `leakline/importing/log_reader.py`, which detects the format and
chooses the reader.
"""
