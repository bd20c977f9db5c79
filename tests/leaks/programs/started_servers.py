"""A server per environment, started as a separate program and left running when the environment is replaced."""

from __future__ import annotations

import subprocess
import sys

from _training import Network, normal, parse, start

PHASES = ("reset", "train", "evaluate")
SERVER_BYTES = 12 * 2**20
# Memory of the interpreter itself.
PROCESS_BYTES = 2_500_000
SERVERS_KEPT = 10
# Holds a world, reports that it is ready, and waits for the end of its input.
PROGRAM = (
    f"import sys; world = b'x' * {SERVER_BYTES}; print(len(world), flush=True); sys.stdin.read()"
)


class Environment:
    """At most ``kept`` servers run; the oldest is stopped when another is needed."""

    def __init__(self, kept: int | None) -> None:
        self.kept = kept
        self.servers: list[subprocess.Popen[str]] = []

    def reset(self) -> int:
        server = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", PROGRAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        self.servers.append(server)
        if self.kept is not None and len(self.servers) > self.kept:
            self.servers.pop(0).communicate()
        return int(server.stdout.readline())


def main() -> None:
    options = parse()
    random = options.random
    run = start(options, PHASES)
    policy = Network(random)
    environment = Environment(None if options.leaking else SERVERS_KEPT)
    for generation in range(options.generations):
        run.generation(generation)
        with run.phase("reset"):
            run.gauge("world_bytes", environment.reset())
        with run.phase("train"):
            policy.fit(random, steps=400)
        with run.phase("evaluate"):
            run.gauge("reward", float(policy.predict(normal(random, 512, 64)).mean()))
    for server in environment.servers:
        server.kill()
        server.wait()
    run.finish()


if __name__ == "__main__":
    main()
