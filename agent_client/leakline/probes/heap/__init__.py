"""The Python heap: census of live objects, exact instance counts, tensors and arrays, cyclic garbage.

Imports `probes.references`, `snapshot`; torch and numpy inside functions. Start reading in `census.py`;
`native_census.py` does the same in C.
"""
