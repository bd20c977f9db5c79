"""Storage on SQLite or Postgres; the only package that imports SQLAlchemy.

It imports `limits` and `leakline`. Start reading in `schema.py` (all tables) and `engine.py` (the connection).
"""
