"""A run in the training process: its training loop, phases, declarations, start-up and shutdown.

This package connects the client's other packages. It imports `runtime`, `console`, `probes`,
`sampling`, `transport` and `actions`, and imports `report` and `analysis` only when they are
needed. Start reading in `training_loop.py` (what happens at a phase end) and `pipeline.py` (how the
parts fit together).
"""
