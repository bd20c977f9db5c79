"""Callbacks for training frameworks, one module per framework. `leakline` itself imports none of these modules.

`automatic.py` adds the callbacks to programs that contain none, and `plain_torch.py` finds generations and phases in
loops without a framework.

Each module imports `run`, `core`, `settings`, `errors`, `runtime` and its framework. Start reading in `training.py`,
which all callbacks use.
"""
