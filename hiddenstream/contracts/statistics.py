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
        return math.sqrt(self.m2 / self.count + self.mean**2) if self.count else 0.0

    def merged(self, other: TapStatistics) -> TapStatistics:
        """Return the statistics of both sets of values together."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        return TapStatistics(
            count=count,
            mean=self.mean + apart * other.count / count,
            m2=self.m2 + other.m2 + apart**2 * self.count * other.count / count,
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
            str(tap): TapStatistics(
                count=int(told["count"]), mean=float(told["mean"]), m2=float(told["m2"]), largest=float(told["largest"])
            )
            for tap, told in wire.items()
        }
        is_sound = all(all(map(math.isfinite, asdict(known).values())) for known in taps.values())
        return taps if is_sound else {}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return {}
