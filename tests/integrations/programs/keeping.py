"""The leak of every program: keeps 4 MiB at each call, or only the newest."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

FLOATS = 2**20


@dataclass(eq=False)
class Prediction:
    values: torch.Tensor


class Keeper:
    """Keeps everything if the first argument of the program is ``leak``."""

    def __init__(self) -> None:
        self.kept: list[Prediction] = []
        self.leaks = sys.argv[1] == "leak"

    def keep(self) -> None:
        self.kept.append(Prediction(torch.rand(FLOATS)))
        if not self.leaks:
            del self.kept[:-1]
