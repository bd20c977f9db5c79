"""The Leakline server: ingest, storage, alerts, web pages.

The server imports `leakline`, never the reverse. Start reading in `app.py`, which wires everything; `serve.py` starts
the process.
"""
