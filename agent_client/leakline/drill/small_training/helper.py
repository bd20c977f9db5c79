"""The child process that grows: one shard of as many bytes as its argument says for each line on stdin."""

from __future__ import annotations

import sys


def main() -> None:
    size = int(sys.argv[1])
    shards: list[bytearray] = []
    for _ in sys.stdin:
        shards.append(bytearray(b"x") * size)
        sys.stdout.write(f"{len(shards)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
