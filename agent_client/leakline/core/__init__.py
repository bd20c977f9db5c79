"""A run in the training process: training loop, phases, script declarations, start-up and shutdown.

Connects the other packages of the client: imports `runtime`, `console`, `probes`, `sampling`,
`transport` and `actions`, and, only when needed, `report` and `analysis`. Start reading in
`training_loop.py` (what happens at a phase end) and `pipeline.py` (how the parts are put together).
"""
