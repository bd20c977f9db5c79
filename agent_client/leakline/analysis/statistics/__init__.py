"""Statistics on one series: the trend and shape of growth, and the evidence from memory and from counts.

This package imports `analysis.timeline` and no other module of the analysis. Start reading in `trend.py` (Theil-Sen
slope with its interval).
"""
