"""Recording of programs that do not call Leakline: `leakline run`, `leakline watch`, automatic instrumentation.

Imports any package but `cli` and `integrations`. Start reading in `program_launch.py` and `observer.py`.
"""
