"""Statistics on one series: trend, shape of growth, onset, the evidence of memory and of counts.

Imports `analysis.timeline` and no other package of the analysis. Start reading in `trend.py` (Theil-Sen slope with
its interval).
"""
