"""When memory runs out, when it is flat, how long a run takes, and how right earlier forecasts were.

Imports `analysis.statistics`, `memory`, `findings`. Start reading in `oom_forecast.py`.
"""
