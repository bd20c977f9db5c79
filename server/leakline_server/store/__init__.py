"""Storage: the only package that imports SQLAlchemy. SQLite or Postgres.

Imports `limits` and `leakline`. Start reading in `schema.py` (all tables) and `engine.py` (the connection).
"""
