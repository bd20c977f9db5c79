"""Decides what is measured when: sampler, overhead budget, heap scans, type counts, holder paths.

Imports `probes`, `runtime`, `snapshot`, `text_format`. Start reading in `sampler.py`;
`heap_scans.py` decides about scans of the entire heap.
"""
