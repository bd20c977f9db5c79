"""The program's own functions that Leakline calls: callbacks for a changed verdict, and cleanups.

This package imports `sampling`, `runtime`, `snapshot` and `errors`, and lazily `analysis`. Start reading in
`callbacks.py`.
"""
