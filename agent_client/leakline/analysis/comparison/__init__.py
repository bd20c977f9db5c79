"""Comparison of two runs, and of one run before and after a fix.

This package imports every other package of the analysis except `forecast`. Start reading in `run_comparison.py`.
"""
