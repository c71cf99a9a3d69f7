"""Checks of layer options: a recipe that cannot work is refused where it is written, naming option and value."""

from __future__ import annotations

import math

from aioprefetch.errors import ConfigInvalid


def check_count(layer: str, name: str, value: object, *, least: int) -> None:
    """``ConfigInvalid`` unless ``value`` is an integer (no bool) of at least ``least``."""
    if type(value) is not int or value < least:
        raise ConfigInvalid(
            f"{name} of {layer} must be an integer of at least {least}, not {value!r}", operation="configure"
        )


def check_seconds(layer: str, name: str, value: object, *, zero_allowed: bool = False) -> None:
    """``ConfigInvalid`` unless ``value`` is a finite number of seconds above zero (or zero, where that is allowed)."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    good = math.isfinite(number) and (number > 0 or (zero_allowed and number == 0))
    if not good:
        least = "of at least 0" if zero_allowed else "above 0"
        raise ConfigInvalid(
            f"{name} of {layer} must be a number of seconds {least}, not {value!r}", operation="configure"
        )
