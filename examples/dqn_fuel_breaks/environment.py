"""An area of land on fire, and a crew that digs fuel breaks into it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

SIZE: Final = 64
BLOCKS: Final = 16
ACTIONS: Final = BLOCKS * BLOCKS
PLANES: Final = 3
EPISODE_STEPS: Final = 40
UNBURNT, BURNING, BURNT, BREAK = range(4)
BURNS_OUT: Final = 0.35
IGNITION: Final = 0.26
DIGGING_COST: Final = 0.01
# Offsets to the neighbours as (rows, columns).
DIRECTIONS: Final = tuple((r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c)

Cells = NDArray[np.uint8]
Plane = NDArray[np.float64]


class FireEnvironment:
    """SIZE x SIZE cells of fuel, a fire among them, and a block of cells to dig away in each step.

    The land, and how fire spreads over it, is computed once in the constructor. The frames of the episode are for the
    picture.
    """

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.fuel = _hills(random)
        self.sparing = _sparing(self.fuel, _hills(random), random.uniform(-0.5, 0.5, 2))
        self.random = random
        self.cells: Cells = np.zeros((SIZE, SIZE), dtype=np.uint8)
        self.frames: list[Cells] = []

    def reset(self, seed: int) -> Cells:
        """Start a new fire and return the first observation, (PLANES, BLOCKS, BLOCKS)."""
        self.random = np.random.default_rng(seed)
        self.cells = np.zeros((SIZE, SIZE), dtype=np.uint8)
        row, column = self.random.integers(SIZE // 4, 3 * SIZE // 4, 2)
        self.cells[row - 1 : row + 2, column - 1 : column + 2] = BURNING
        self.frames.clear()
        return self._observation()

    def step(self, block: int) -> tuple[Cells, float, bool]:
        """Dig ``block`` away and let the fire spread: next observation, reward in percent of the fuel, done."""
        dug = self._dig(block)
        lost = self._burn()
        self.frames.append(self.cells.copy())
        return self._observation(), -100.0 * lost - DIGGING_COST * dug, self.is_over()

    def is_over(self) -> bool:
        return len(self.frames) >= EPISODE_STEPS

    def _dig(self, block: int) -> int:
        side = SIZE // BLOCKS
        row, column = side * (block // BLOCKS), side * (block % BLOCKS)
        inside = self.cells[row : row + side, column : column + side]
        fresh = inside == UNBURNT
        inside[fresh] = BREAK
        return int(fresh.sum())

    def _burn(self) -> float:
        """Advance the fire by one step and return the share of all fuel that caught fire."""
        burning = self.cells == BURNING
        around = np.pad(burning, 1)
        # Logarithms, because the chances of several neighbours are multiplied.
        spared = np.zeros((SIZE, SIZE))
        for (rows, columns), chance in zip(DIRECTIONS, self.sparing, strict=True):
            from_there = around[1 - rows : 1 - rows + SIZE, 1 - columns : 1 - columns + SIZE]
            np.add(spared, chance, out=spared, where=from_there)
        dice = self.random.random((2, SIZE, SIZE))
        caught = (self.cells == UNBURNT) & (dice[0] > np.exp(spared))
        self.cells[burning & (dice[1] < BURNS_OUT)] = BURNT
        self.cells[caught] = BURNING
        return float(self.fuel[caught].sum() / self.fuel.sum())

    def _observation(self) -> Cells:
        """Return fuel left, fire and breaks by block, each from 0 to 255."""
        planes = (self.fuel * (self.cells == UNBURNT), self.cells == BURNING, self.cells == BREAK)
        side = SIZE // BLOCKS
        blocks = np.stack(planes).reshape(PLANES, BLOCKS, side, BLOCKS, side).mean(axis=(2, 4))
        return np.rint(255.0 * blocks).astype(np.uint8)


def _hills(random: np.random.Generator) -> Plane:
    """Return SIZE x SIZE values from 0 to 1 in patches with blurred edges."""
    side = SIZE // 8
    hills = np.kron(random.random((8, 8)), np.ones((side, side)))
    for axis in (0, 1):
        hills = sum(np.roll(hills, shift, axis) for shift in range(side)) / side
    return np.asarray(hills)


def _sparing(fuel: Plane, height: Plane, wind: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log of the chance that fire from each direction spares a cell: it spreads uphill and with the wind."""
    chances = []
    for rows, columns in DIRECTIONS:
        rise = height - np.roll(height, (rows, columns), (0, 1))
        push = wind @ (rows, columns)
        chances.append(IGNITION * fuel * np.exp(2.0 * rise + push))
    return np.log1p(-np.clip(np.stack(chances), 0.0, 0.95))
