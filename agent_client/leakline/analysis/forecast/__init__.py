"""When memory runs out, when it is flat, how long a run takes, and how right earlier forecasts were.

Imports `analysis.statistics`, `memory`, `findings`, `comparison`. Start reading in `oom_forecast.py`.
"""
