"""What Leakline costs the program it observes, beside what others cost: `make bench-client`."""
