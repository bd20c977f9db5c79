"""Decides what is measured and when: sampler, overhead budget, heap scans, type counts and holder paths.

This package imports `probes`, `runtime`, `snapshot` and `text_format`. Start reading in
`sampler.py`; `heap_scans.py` decides when to scan the entire heap.
"""
