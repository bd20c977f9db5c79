"""Functions of the program that Leakline calls: callbacks for a changed verdict, and cleanups.

Imports `sampling`, `runtime`, `snapshot`, `errors`; `analysis` lazily. Start reading in `callbacks.py`.
"""
