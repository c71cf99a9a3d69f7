"""Checks of options: what cannot work is refused where it is written, naming option and value. Pure, no I/O."""

from __future__ import annotations

import math
import os

from aioprefetch.errors import ConfigInvalid


def check_count(layer: str, name: str, value: object, *, least: int) -> None:
    """``ConfigInvalid`` unless ``value`` is an integer (no bool) of at least ``least``."""
    if type(value) is not int or value < least:
        raise ConfigInvalid(
            f"{name} of {layer} must be an integer of at least {least}, not {value!r}", operation="configure"
        )


def checked_seconds(name: str, value: object, *, zero_allowed: bool = False, operation: str = "configure") -> float:
    """A finite number of seconds above zero (or zero, where that is allowed). ``ConfigInvalid`` for anything else."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if math.isfinite(number) and (number > 0 or (zero_allowed and number == 0)):
        return number
    least = "of at least 0" if zero_allowed else "above 0"
    raise ConfigInvalid(f"{name} must be a number of seconds {least}, not {value!r}", operation=operation)


def checked_file(name: str, value: object) -> str:
    """The path of a file, as text. ``ConfigInvalid`` for anything else."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise ConfigInvalid(f"{name} must be the path of a file, not {value!r}", operation="configure")
    return path
