"""Statistics on one series: trend and shape of growth, evidence from memory and its onset, evidence from counts.

This package imports `analysis.timeline` and no other module of the analysis. Start reading in `trend.py`
(Theil-Sen slope with its interval).
"""
