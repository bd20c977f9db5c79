"""Callbacks for training frameworks, one module each. Nothing here is imported by `leakline` itself.

Imports `run`, `core`, `settings`, `errors`, `runtime` and its own framework. Start reading in `training.py`, which
all of them call.
"""
