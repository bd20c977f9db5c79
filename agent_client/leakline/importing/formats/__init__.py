"""Readers of logs that other tools have written, one file for each format.

Imports `importing` and `snapshot`. Start reading in `leakline/importing/format_detection.py`, which chooses the
reader.
"""
