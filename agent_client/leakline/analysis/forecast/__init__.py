"""Forecasts: when memory runs out, when it became flat, and how accurate earlier forecasts were.

This package imports `analysis.statistics`, `memory`, `findings`. Start reading in `oom_forecast.py`.
"""
