"""Keeps 4 MiB ten times, slowly enough for a recorder that samples from outside."""

from __future__ import annotations

import time

if __name__ == "__main__":
    kept = []
    for _ in range(10):
        kept.append(bytearray(b"x" * (4 << 20)))
        time.sleep(0.3)
