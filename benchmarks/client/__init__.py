"""Benchmarks of the client's cost in the program it observes, compared with other tools: `make bench-client`."""
