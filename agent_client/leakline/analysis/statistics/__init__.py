"""Statistics on one series: trend and shape of growth, the evidence of memory and its onset, the evidence of counts.

Imports `analysis.timeline` and no other module of the analysis. Start reading in `trend.py` (Theil-Sen slope with
its interval).
"""
