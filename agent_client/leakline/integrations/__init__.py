"""Callbacks for training frameworks, one module per framework. `leakline` itself imports none of these modules.

Each module imports `run`, `core`, `settings`, `errors`, `runtime` and its framework. Start reading in `training.py`,
which all callbacks use.
"""
