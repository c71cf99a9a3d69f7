"""How objects of the library are shown: texts for a terminal, tables and pictures for a notebook.

Here are numbers with their units, as people read them. The modules take plain data and return text or self-contained
HTML: no script, no request to a network, nothing that is not escaped, and a bounded length. They load when something is
shown; the classes themselves only say what they hold.
"""

from __future__ import annotations

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: int) -> str:
    """A number of bytes: ``512 B``, ``1.5 MiB``; three digits, and all digits below 1 KiB."""
    size = abs(count)
    if size < 1024:
        return f"{count} B"
    number, power = size / 1024, 0
    while number >= 999.5 and power < len(_BINARY) - 1:
        number /= 1024
        power += 1
    return f"{'-' if count < 0 else ''}{_three_digits(number)} {_BINARY[power]}"


def seconds_text(seconds: float) -> str:
    """A duration: ``85 µs``, ``12.3 ms``, ``1.25 s``, ``3 min 5 s``, ``2 h 10 min``."""
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    if size == 0:
        return "0 s"
    if size < 0.0009995:
        return f"{sign}{_three_digits(size * 1e6)} µs"
    if size < 0.9995:
        return f"{sign}{_three_digits(size * 1e3)} ms"
    if size < 59.95:
        return f"{sign}{_three_digits(size)} s"
    whole = round(size)
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{count_text(whole // 3600)} h {whole % 3600 // 60} min"


def count_text(count: int) -> str:
    """A number with its thousands apart: ``12,345``; ``1.23e+25`` where it is longer than any counter."""
    return f"{count:,}" if abs(count) < 10**18 else f"{float(count):.3g}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things: ``1 request``, ``1,200 requests``."""
    return f"{count_text(count)} {noun if count == 1 else plural or noun + 's'}"


def share_text(part: float, whole: float) -> str:
    """A part in percent of the whole, ``62 %``: 0 % and 100 % are exact."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1:
        return "< 1 %"
    if 99 < percent < 100:
        return "> 99 %"
    return f"{round(percent)} %"


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.3g}"
