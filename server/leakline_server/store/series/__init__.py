"""Columns of numbers on disk: the chunk format, sealing of batches, compaction, reading back.

Imports `store.ingest`, `runs`, `details`, `downsampling`, `maintenance`; numpy and zstandard. Start reading in
`chunk_codec.py` (the format) and `column_reader.py`.
"""
