"""Ingest of batches, from the request body to the database: decoding, validation, fair queueing, and writing many
batches in one transaction.

This package imports `store`, `limits`, `errors`, and only exceptions from SQLAlchemy; it does not import FastAPI. Start
reading in `decode.py`, then `writer.py`.
"""
