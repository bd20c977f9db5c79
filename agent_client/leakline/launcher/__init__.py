"""Records programs that do not call Leakline: `leakline run`, `leakline watch` and automatic instrumentation.

Imports any package except `cli`, and of `integrations` only `automatic`. Start reading in `program_launch.py` and
`observer.py`.
"""
