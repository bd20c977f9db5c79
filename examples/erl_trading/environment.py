"""One trading account that an agent plays an episode in."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .market import ASSETS, FEATURES, Market

EPISODE_DAYS: Final = 200
OBSERVATION_SIZE: Final = ASSETS * FEATURES + ASSETS + 1
COST_PER_TURNOVER: Final = 0.0005

Array = NDArray[np.float64]


class TradingEnvironment:
    """Twelve assets over ``EPISODE_DAYS`` days of the market, from ``first_day``.

    The observations of its days are computed once in the constructor; the history of the episode is recorded for the
    summary at the end.
    """

    def __init__(self, market: Market, first_day: int, *, keep_history: bool = False) -> None:
        days = slice(first_day, first_day + EPISODE_DAYS + 1)
        self.returns = market.returns[days]
        self.table = _standardised(market.features[days])
        self.keep_history = keep_history
        self.episode_rewards: list[float] = []
        self.episode_actions: list[Array] = []
        self.episode_observations: list[Array] = []
        self.rivals: list[TradingEnvironment] = []
        self.day = 0
        self.weights = np.zeros(ASSETS)
        self.wealth = 1.0

    def reset(self) -> Array:
        """Start an episode and return the first observation, (OBSERVATION_SIZE,)."""
        if not self.keep_history:
            self.episode_rewards.clear()
            self.episode_actions.clear()
            self.episode_observations.clear()
        self.day = 0
        self.weights = np.zeros(ASSETS)
        self.wealth = 1.0
        return self._observation()

    def step(self, action: Array) -> tuple[Array, float, bool]:
        """Hold ``action`` (ASSETS,) as shares of wealth for a day: next observation, reward in percent, done."""
        weights = action / max(1.0, float(np.abs(action).sum()))
        turnover = float(np.abs(weights - self.weights).sum())
        gain = float(weights @ self.returns[self.day]) - COST_PER_TURNOVER * turnover
        self.wealth *= 1.0 + gain
        self.weights = weights
        self.day += 1
        observation = self._observation()
        self.episode_rewards.append(100.0 * gain)
        self.episode_actions.append(weights)
        self.episode_observations.append(observation)
        return observation, 100.0 * gain, self.day == EPISODE_DAYS

    def fitness(self) -> float:
        """Return the gain of the last episode in percent of the starting wealth."""
        return 100.0 * (self.wealth - 1.0)

    def _observation(self) -> Array:
        account = (self.weights, (self.wealth - 1.0,))
        return np.concatenate((self.table[self.day], *account))


def _standardised(features: NDArray[np.float32]) -> Array:
    """Reshape (days, assets, FEATURES) to (days, assets * FEATURES) and standardise each column."""
    table = features.reshape(len(features), -1).astype(np.float64)
    spread = table.std(axis=0)
    spread[spread == 0.0] = 1.0
    table -= table.mean(axis=0)
    table /= spread
    return table
