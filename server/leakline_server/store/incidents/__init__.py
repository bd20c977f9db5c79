"""Rows of findings and incidents, and acknowledgements of them.

Imports `store.runs`, `series`, `maintenance`, and `leakline.analysis`. Start reading in
`findings.py`.
"""
