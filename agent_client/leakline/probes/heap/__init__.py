"""The Python heap: the census of live objects, exact instance counts, tensors and arrays, garbage cycles.

Imports `probes.references`, `snapshot`; torch and numpy inside functions. Start reading in `census.py`;
`native_census.py` is the same in C.
"""
