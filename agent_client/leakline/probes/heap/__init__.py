"""The Python heap: a census of live objects, exact instance counts, tensors and arrays, and cyclic garbage.

This package imports `probes.references`, `snapshot` and, inside functions, torch and numpy. Start reading in
`census.py`; `native_census.py` does the same in C.
"""
