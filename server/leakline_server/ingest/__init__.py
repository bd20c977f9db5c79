"""From a request body to a stored batch: decode, validate, queue fairly, write in one transaction.

Imports `store`, `limits`, `errors`; no FastAPI; of SQLAlchemy only exceptions. Start reading in `decode.py`, then
`writer.py`.
"""
