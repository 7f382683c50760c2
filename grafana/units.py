"""Numbers as Grafana writes them, for the pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SHORT = ((1e12, " Tri"), (1e9, " Bil"), (1e6, " Mil"), (1e3, " K"))
_BINARY = tuple((1024.0**power, f" {letter}iB") for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")))
_DECIMAL_RATE = ((1e12, " TB/s"), (1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"))
_TIME = ((86_400.0, " days"), (3_600.0, " hours"), (60.0, " mins"))


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Return *value* with its unit, three figures or *decimals* places long."""
    if not math.isfinite(value):
        return "no data"
    if unit == "percentunit":
        return f"{value:.{1 if decimals is None else decimals}%}".replace("%", " %")
    if unit == "s":
        if 0 < abs(value) < 1:
            return f"{value * 1000:.3g} ms"
        return _scaled(value, _TIME, " s", 1 if abs(value) >= 60 else decimals)
    if unit == "locale":
        return f"{value:,.{decimals or 0}f}"
    if unit == "bytes":
        return _scaled(value, _BINARY, " B", decimals)
    if unit == "Bps":
        return _scaled(value, _DECIMAL_RATE, " B/s", decimals)
    suffix = {"watt": " W", "celsius": " °C"}.get(unit, "")
    return _scaled(value, _SHORT, "", decimals) + suffix


def _scaled(value: float, sizes: Sequence[tuple[float, str]], below: str, decimals: int | None) -> str:
    size, name = next(((size, name) for size, name in sizes if abs(value) >= size), (1.0, below))
    number = value / size
    places = decimals if decimals is not None and size > 1 else None
    text = f"{number:.{places}f}" if places is not None else f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"
    return f"{text}{name}"


def ticks(low: float, high: float, unit: str, most: int = 5) -> list[float]:
    """Return round values between *low* and *high*, at most *most* and a few."""
    base = 1024.0 if unit == "bytes" else 60.0 if unit == "s" and high - low > 120 else 10.0
    rough = max(high - low, 1e-12) / most
    magnitude = base ** math.floor(math.log(rough, base))
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    step = next((magnitude * factor for factor in steps if magnitude * factor >= rough), magnitude * base)
    first = math.ceil(low / step)
    return [step * place for place in range(first, math.floor(high / step) + 1)]
