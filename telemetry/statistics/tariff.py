"""Dollars for seconds at rates that change."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from telemetry.blocks import FloatArray


@dataclass(frozen=True, slots=True)
class Tariff:
    """Dollars per second, each rate from its moment on until the next one's."""

    from_s: FloatArray  # (n,) Unix seconds, rising; before the first nothing is paid
    usd_per_s: FloatArray  # (n,) dollars per second; NaN where the price is not known

    @classmethod
    def of(cls, rates: Iterable[tuple[float, float]]) -> Self:
        """Create a tariff from (Unix second, dollars per second)."""
        table = np.array(list(rates), dtype=float).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    def rate_at(self, at_s: float) -> float:
        """Rate at a time; before the first one, the first."""
        return float(self.rates_at(np.array([at_s]))[0])

    def rates_at(self, at_s: FloatArray) -> FloatArray:
        """Rates at (n,) times; before the first one, the first."""
        place = np.searchsorted(self.from_s, at_s, side="right") - 1
        return np.asarray(self.usd_per_s[np.maximum(0, place)])

    def seconds(self, start_s: float, end_s: float) -> FloatArray:
        ends = np.append(self.from_s[1:], np.inf)
        lasted = np.minimum(ends, end_s) - np.maximum(self.from_s, start_s)
        return np.asarray(np.maximum(lasted, 0.0))

    def usd(self, start_s: float, end_s: float) -> float:
        """Dollars between two times; NaN if a rate is unknown.

        ``sum of rate * seconds that it held``. It never falls as the end moves on, and as long
        as rates are only added after a moment, nothing before that moment changes.

        A dollar per second, and half of it from the tenth second on:

        >>> Tariff.of([(0, 1.0), (10, 0.5)]).usd(0, 14)
        12.0
        """
        seconds = self.seconds(start_s, end_s)
        return self.dollars(seconds) if seconds.any() else 0.0 * self.rate_at(start_s)

    def each_usd(self, start_s: FloatArray, end_s: FloatArray) -> FloatArray:
        """Dollars of (n,) intervals; the first rate also holds before its time.

        Two seconds at a dollar, and four of which the last two cost half:

        >>> Tariff.of([(0, 1.0), (10, 0.5)]).each_usd(np.array([6.0, 8]), np.array([8.0, 12]))
        array([2., 3.])
        """
        total = np.zeros(len(start_s))
        begins = np.append(-np.inf, self.from_s[1:])
        ends = np.append(self.from_s[1:], np.inf)
        for begin, end, rate in zip(begins, ends, self.usd_per_s, strict=True):
            seconds = np.maximum(np.minimum(end_s, end) - np.maximum(start_s, begin), 0.0)
            total += np.where(seconds > 0, seconds * rate, 0.0)
        return total

    def dollars(self, seconds: FloatArray) -> float:
        """Dollars of (n,) seconds at each rate; zero seconds cost nothing at any rate."""
        return float(np.where(seconds > 0, seconds * self.usd_per_s, 0.0).sum())
