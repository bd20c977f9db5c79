"""Callbacks for training frameworks, one module each. `leakline` itself imports none of them.

Imports `run`, `core`, `settings`, `errors`, `runtime` and its own framework. Start reading in `training.py`, which
all callbacks use.
"""
