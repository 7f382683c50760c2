"""Numbers and times in words, for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a time for people, in its two largest units."""
    whole = round(seconds)
    for name, size, smaller, rest in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // rest} {smaller}"
    return f"{whole} s"


def short(number: float) -> str:
    """Return a number in at most five characters and a unit letter: 950, 12.3k, 4.56M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 999.5 * size else f"{number / size:,.0f}{letter}"
    return f"{number:.0f}"


def amount_of_bytes(number: float) -> str:
    """Return bytes in decimal units."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.0f} B"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
