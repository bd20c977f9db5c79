"""Columns of numbers on disk: the chunk format, sealing of batches, compaction, reading back, and points for charts.

Imports `store.ingest`, `runs`, `details`, `maintenance`; numpy and zstandard. Start reading in `chunk_codec.py` (the
format), `column_reader.py`, and `chart_points.py` (long series as few points).
"""
