"""Runs and their processes: registration, lifecycle, lists, and the history that the analysis reads.

It may import any other package of `store`, and `leakline.analysis`. Start reading in `run_registration.py` and
`runs.py`.
"""
