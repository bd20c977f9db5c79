"""A physics engine behind ctypes whose bodies must be destroyed explicitly at each reset of the environment."""

from __future__ import annotations

import ctypes
from collections import deque

import numpy as np
from _training import Network, normal, parse, start

PHASES = ("reset", "train", "evaluate")
BODIES = 400
BODY_BYTES = 8_192
# Including the overhead of the C allocator for each block.
BLOCK_BYTES = BODY_BYTES + 16
WORLDS_KEPT = 10

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.malloc.argtypes = [ctypes.c_size_t]
LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]


class PhysicsEnvironment:
    """Keeps the last worlds for replays; with ``destroy``, the bodies of older ones are freed."""

    def __init__(self, destroy: bool) -> None:
        self.destroy = destroy
        self.worlds: deque[list[int]] = deque()

    def reset(self, random: np.random.Generator) -> int:
        self.worlds.append([self._create_body(int(random.integers(256))) for _ in range(BODIES)])
        if len(self.worlds) > WORLDS_KEPT:
            bodies = self.worlds.popleft()
            if self.destroy:
                for body in bodies:
                    LIBC.free(body)
        return len(self.worlds[-1])

    def _create_body(self, shape: int) -> int:
        body = int(LIBC.malloc(BODY_BYTES))
        LIBC.memset(body, shape, BODY_BYTES)
        return body


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    environment = PhysicsEnvironment(destroy=not options.leaking)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("reset"):
            run.gauge("bodies", environment.reset(random))
        with run.phase("train"):
            policy.fit(random, steps=600)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, 64)).mean()))
    run.finish()


if __name__ == "__main__":
    main()
