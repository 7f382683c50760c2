"""Mean, spread and largest value of the states of one tap, merged over batches, shards and runs. No I/O here.

Each part keeps its count, its mean and the sum of squared distances from it (M2), which merge without the cancellation
that sums of squares suffer from where the mean is large. Source: Chan, Golub, LeVeque, "Updating Formulae and a
Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class TapStatistics:
    """What is known of many values.

    Attributes:
        count: how many values.
        mean: theirs.
        m2: sum of their squared distances from the mean.
        largest: largest magnitude.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    largest: float = 0.0

    @property
    def rms(self) -> float:
        """Root mean square; 0 of no values."""
        return math.hypot(self.mean, math.sqrt(self.m2 / self.count)) if self.count else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether every figure is a number; sums beyond float32 make figures that are none."""
        return all(map(math.isfinite, (self.mean, self.m2, self.largest)))

    def merged(self, other: TapStatistics) -> TapStatistics:
        """Return the statistics of both sets of values together."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        return TapStatistics(
            count=count,
            mean=self.mean + apart * other.count / count,
            m2=self.m2 + other.m2 + apart * apart * (self.count * other.count / count),  # ** would raise
            largest=max(self.largest, other.largest),
        )

    @classmethod
    def of_tokens(
        cls, means: npt.NDArray[Any], variances: npt.NDArray[Any], largest: npt.NDArray[Any], *, width: int
    ) -> TapStatistics:
        """Merge what is known of each token's *width* values: mean, variance (of all, not of a sample), largest."""
        if not means.size:
            return cls()
        means = means.astype(np.float64)
        mean = float(means.mean())
        with np.errstate(invalid="ignore"):  # the caller asks is_finite
            m2 = width * float(variances.astype(np.float64).sum() + np.square(means - mean).sum())
        return cls(count=means.size * width, mean=mean, m2=m2, largest=float(largest.max()))


def merge_taps(one: Mapping[str, TapStatistics], other: Mapping[str, TapStatistics]) -> dict[str, TapStatistics]:
    """Merge statistics by tap."""
    nothing = TapStatistics()
    return {tap: one.get(tap, nothing).merged(other.get(tap, nothing)) for tap in {**one, **other}}


def statistics_to_wire(taps: Mapping[str, TapStatistics]) -> dict[str, dict[str, float]]:
    """Return what a shard and a ledger line hold of them."""
    return {tap: asdict(statistics) for tap, statistics in taps.items()}


def statistics_from_wire(wire: Any) -> dict[str, TapStatistics]:
    """Read what :func:`statistics_to_wire` wrote; nothing where it is not that, since it is there for people alone."""
    try:
        taps = {
            str(tap): TapStatistics(count=told["count"], mean=told["mean"], m2=told["m2"], largest=told["largest"])
            for tap, told in wire.items()
        }
    except (AttributeError, KeyError, TypeError):
        return {}
    return taps if all(map(_is_possible, taps.values())) else {}


def _is_possible(known: TapStatistics) -> bool:
    figures = (known.mean, known.m2, known.largest)
    is_whole = type(known.count) is int and 0 <= known.count < 1 << 63
    return is_whole and all(type(one) is float for one in figures) and known.is_finite and min(figures[1:]) >= 0
