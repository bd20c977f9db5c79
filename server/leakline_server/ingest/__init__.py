"""Ingest of batches, from the request body to the database: decodes, validates, queues fairly, and writes many in one
transaction.

Imports `store`, `limits`, `errors`; does not import FastAPI, and only exceptions from SQLAlchemy. Start reading in
`decode.py`, then `writer.py`.
"""
