"""Callbacks for training frameworks, one module each. Nothing here is imported by `leakline` itself.

`training.py` is what they share: one training of a framework as a run, generations and phases. `order.py` puts a
callback before those of the user, `options.py` holds what each takes.
"""
