"""Runs and their processes: registration, lifecycle, lists, and the history that the analysis reads.

This package imports the other packages of `store`, and `leakline.analysis`. Start reading in `run_registration.py` and
`runs.py`.
"""
