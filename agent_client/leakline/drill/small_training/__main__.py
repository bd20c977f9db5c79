"""Train for some generations, plant one kind of growth meanwhile, and tell of each generation on stdout.

One line of JSON for each generation: ``{"generation": 3, "planted_bytes": 4194304, "ended_at": 1760000000.0}``, in
bytes that stay and Unix seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from contextlib import closing
from typing import Any, Final

import leakline
from leakline.drill.kinds import GENERATIONS, KINDS, PHASES, Kind

from .model import Model
from .planting import Plant, plant_of

# The server looks at a run twice a second; a training as fast as that could not show when it was heard.
SECONDS: Final = 0.6


def main() -> None:
    options = _parse()
    kind = KINDS[options.kind]
    run = leakline.init(
        project="drill", name=kind.name, unit="generation", total=options.generations, phases=PHASES
    )
    with closing(plant_of(kind.plant)) as plant:
        plant.declare(run)
        _train(run, plant, kind, options)
        run.finish()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="small_training")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--generations", type=int, default=GENERATIONS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a generation lasts")
    return parser.parse_args()


def _train(run: leakline.Run, plant: Plant, kind: Kind, options: argparse.Namespace) -> None:
    model = Model(random.Random(0))
    pause = Pause(options.seconds)
    for generation in range(options.generations):
        planted = 0
        with run.generation(generation):
            for phase in PHASES:
                with run.phase(phase):
                    model.work(phase)
                    if phase == kind.phase and kind.due(generation):
                        planted = plant.grow(generation)
                    if phase == "train":
                        pause.rest()
        _tell({"generation": generation, "planted_bytes": planted, "ended_at": time.time()})


class Pause:
    """Stands for waiting for an accelerator: a generation lasts ``seconds`` from one rest to the next."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic()

    def rest(self) -> None:
        now = time.monotonic()
        # What took too long is not made up for by faster generations.
        self.until = max(now, self.until + self.seconds)
        time.sleep(self.until - now)


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
