"""A training in a process of its own, with the real client; it goes on only when told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# An array that is no container for the collector keeps the agents, so that nothing finds who holds them unasked.
SCRIPT = """
import sys, leakline, numpy

class Agent:
    def __init__(self):
        self.weights = bytearray(1 << 17)

class Trainer:
    def __init__(self):
        self.hidden = numpy.zeros(1 << 14, object)
        self.known = []
        self.generation = 0

    def train(self):
        with run.generation(self.generation), run.phase("train"):
            at = 8 * self.generation
            self.hidden[at : at + 8] = [Agent() for _ in range(8)]
            self.generation += 1

    def show(self):
        self.known = [agent for agent in self.hidden if agent]

trainer = Trainer()
run = leakline.init(project="asked")
for line in sys.stdin:
    for _ in range(int(line)):
        trainer.train()
    if line == "0\\n":
        trainer.show()
    print("ready", flush=True)
run.finish()
"""


class RealTraining:
    def __init__(self, folder: Path, server: str, run: str, **environment: str) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        outside = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
        self.process = subprocess.Popen(
            [sys.executable, str(script)], cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**outside, "LEAKLINE_SERVER": server, "LEAKLINE_RUN_ID": run, **environment},
        )  # fmt: skip

    def train(self, generations: int = 1) -> None:
        self._tell(generations)

    def show_holder(self) -> None:
        """From now on a list keeps the agents as well, which a search can name."""
        self._tell(0)

    def end(self) -> str:
        """Whatever it complained of, besides the lines at the start and at the end: a quiet run refuses requests."""
        said = self.process.communicate(timeout=60)[1].splitlines()
        return "\n".join(
            line for line in said if not line.startswith("leakline: ") or " failed (" in line
        )

    def _tell(self, number: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"
