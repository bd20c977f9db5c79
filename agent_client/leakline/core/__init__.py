"""A run in the training process: training loop, phases, script declarations, start-up and shutdown.

Wires the other packages of the client: imports `runtime`, `console`, `probes`, `sampling`,
`transport`, `actions`; `report` and `analysis` lazily. Start reading in `training_loop.py` (one
phase end) and `pipeline.py` (how the parts are put together).
"""
