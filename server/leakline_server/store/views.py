"""Views for people who read the database with SQL. Leakline itself never reads them.

    run_list       one row a run: what it is, how it ended, how large it is
    segment_list   one row a sealed stretch of a process, with its times and generations
    series_list    one row a sealed stretch and series: how many numbers are there, the first, last, lowest and highest

What is inside a chunk is packed (`codec.py`): the numbers one by one come from `leakline db export`.

The views are made by the code that brings a database to this version, after the last step, and dropped before the
first: a table that a view reads cannot be made anew under it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

# Times as text: as people write them.
_TIME: Final = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, 'unixepoch')",
    "postgresql": "to_char(to_timestamp({0}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
}

_RUN_LIST: Final = """
SELECT r.id AS run_id, r.project, r.name, r.state, r.status, r.reason,
       {started} AS started_at, {seen} AS last_seen_at, {ended} AS ended_at,
       r.first_generation, r.last_generation, r.rss_bytes, r.peak_bytes,
       s.bytes AS stored_bytes
  FROM runs r LEFT JOIN sizes s ON s.run_id = r.id
"""

# What a version sealed that did not count (present -1, bytes 0) is NULL.
# Numbers below zero are the columns that every snapshot has: -2 its time, -4 its generation (columns.py).
_SEGMENT_LIST: Final = """
SELECT g.run_id, r.project, r.name, p.instance AS process, p.rank, p.attempt,
       g.first_sequence, g.last_sequence, g.count AS snapshots, g.level, g.thinned, NULLIF(g.bytes, 0) AS bytes,
       {first_time} AS first_time, {last_time} AS last_time,
       n.min AS first_generation, n.max AS last_generation
  FROM segments g
  JOIN runs r ON r.id = g.run_id
  JOIN processes p ON p.run_id = g.run_id AND p.id = g.process_id
  LEFT JOIN chunks t ON t.run_id = g.run_id AND t.process_id = g.process_id AND t.series_id = -2
       AND t.first_sequence = g.first_sequence
  LEFT JOIN chunks n ON n.run_id = g.run_id AND n.process_id = g.process_id AND n.series_id = -4
       AND n.first_sequence = g.first_sequence
"""

_SERIES_LIST: Final = """
SELECT c.run_id, r.project, r.name, p.instance AS process, p.rank, p.attempt, e.name AS series,
       c.first_sequence, g.last_sequence,
       {first_time} AS first_time, {last_time} AS last_time,
       n.min AS first_generation, n.max AS last_generation,
       c.count AS snapshots, NULLIF(c.present, -1) AS present, c.first, c.last, c.min, c.max
  FROM chunks c
  JOIN runs r ON r.id = c.run_id
  JOIN processes p ON p.run_id = c.run_id AND p.id = c.process_id
  JOIN series e ON e.run_id = c.run_id AND e.id = c.series_id
  JOIN segments g ON g.run_id = c.run_id AND g.process_id = c.process_id AND g.first_sequence = c.first_sequence
  LEFT JOIN chunks t ON t.run_id = c.run_id AND t.process_id = c.process_id AND t.series_id = -2
       AND t.first_sequence = c.first_sequence
  LEFT JOIN chunks n ON n.run_id = c.run_id AND n.process_id = c.process_id AND n.series_id = -4
       AND n.first_sequence = c.first_sequence
"""

VIEWS: Final = {"run_list": _RUN_LIST, "segment_list": _SEGMENT_LIST, "series_list": _SERIES_LIST}


def drop(connection: Connection) -> None:
    """Before a table that they read is made anew."""
    for name in VIEWS:
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")


def make(connection: Connection) -> None:
    """When all tables are as `tables.py` says."""
    written = _TIME[connection.dialect.name].format
    times = {
        "started": written("r.started_at"),
        "seen": written("r.last_seen_at"),
        "ended": written("r.ended_at"),
        "first_time": written("t.min"),
        "last_time": written("t.max"),
    }
    for name, query in VIEWS.items():
        # A percent sign of a query text would be read as the place of a parameter.
        text = query.format(**times)
        if connection.dialect.name == "postgresql":
            text = text.replace("%", "%%")
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {text}")
