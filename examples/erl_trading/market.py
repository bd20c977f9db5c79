"""A generated market: returns with a slow drift that can be learned, hidden in noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

ASSETS: Final = 12
DAYS: Final = 3_000
HORIZONS: Final = (1, 2, 3, 5, 8, 13, 21, 34)
FEATURES: Final = 2 * len(HORIZONS)

DRIFT_MEMORY: Final = 0.95
DRIFT_SIZE: Final = 0.0015
NOISE_SIZE: Final = 0.008


@dataclass(frozen=True)
class Market:
    """``returns``: (days, assets), a share per day. ``features``: (days, assets, FEATURES), float32.

    The features of a day are known before that day's return: trailing mean and spread of earlier returns.
    """

    returns: NDArray[np.float64]
    features: NDArray[np.float32]

    @property
    def days(self) -> int:
        return len(self.returns)


def make_market(seed: int, days: int = DAYS, assets: int = ASSETS) -> Market:
    """Generate a market; the same seed gives the same market."""
    random = np.random.default_rng(seed)
    drift = np.zeros((days, assets))
    for day in range(1, days):
        shock = random.normal(0.0, DRIFT_SIZE, assets)
        drift[day] = DRIFT_MEMORY * drift[day - 1] + shock
    returns = drift + random.normal(0.0, NOISE_SIZE, (days, assets))
    return Market(returns, _features(returns))


def _features(returns: NDArray[np.float64]) -> NDArray[np.float32]:
    days, assets = returns.shape
    features = np.zeros((days, assets, FEATURES), dtype=np.float32)
    for number, horizon in enumerate(HORIZONS):
        for day in range(horizon, days):
            window = returns[day - horizon : day]
            # Scaled so that both are about one for every horizon.
            features[day, :, 2 * number] = window.mean(axis=0) * np.sqrt(horizon) / NOISE_SIZE
            features[day, :, 2 * number + 1] = window.std(axis=0) / NOISE_SIZE
    return features
