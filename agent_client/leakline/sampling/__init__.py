"""Decides what is measured and when: sampler, overhead budget, heap scans, type counts, holder paths.

Imports `probes`, `runtime`, `snapshot`, `text_format`. Start reading in `sampler.py`;
`heap_scans.py` decides when to scan the entire heap.
"""
