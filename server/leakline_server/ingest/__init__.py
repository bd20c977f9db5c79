"""Ingest of batches from request body to database: decode, validate, queue fairly, write in one transaction.

Imports `store`, `limits`, `errors`; no FastAPI; only exceptions from SQLAlchemy. Start reading in `decode.py`, then
`writer.py`.
"""
