"""What a builder was told: the last value of each key and whether it is mandatory, parsed by Hadoop's rules.

Values are text, as in a configuration. A text that is not what its key needs counts as unset and is told once: since
HADOOP-18724 a bad hint must never fail an open.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.runtime.events import logger

_INTEGER = re.compile(r"([+-]?[0-9]{1,19})()")
_SIZE = re.compile(r"([+-]?[0-9]{1,19})([kmgtpe]?)", re.IGNORECASE)
_SHIFT = {suffix: 10 * power for power, suffix in enumerate(("", "k", "m", "g", "t", "p", "e"))}
_FLAGS = {"true": True, "false": False}

# So much of a value that cannot be parsed goes into the log.
_SHOWN_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class Setting:
    """One call of ``opt`` or ``must``."""

    value: object
    mandatory: bool


class Settings:
    """The settings of one builder. Nothing is checked when they are put, all of it when they are asked for."""

    def __init__(self) -> None:
        self._given: dict[str, Setting] = {}

    def put(self, key: str, value: object, *, mandatory: bool) -> None:
        """The last call for a key decides on its value and on whether it is mandatory; ``None`` forgets the key."""
        if value is None:
            self._given.pop(str(key), None)
        else:
            self._given[str(key)] = Setting(value, mandatory)

    def items(self) -> Iterator[tuple[str, Setting]]:
        """All keys, known or not."""
        yield from self._given.items()

    def text(self, key: str) -> str | None:
        """The value as text, trimmed; ``None`` when it is not set, or empty. A list is joined with commas."""
        setting = self._given.get(key)
        if setting is None:
            return None
        value = setting.value
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        return str(value).strip() or None

    def integer(self, key: str) -> int | None:
        """A number of 64 bits with a sign, what a ``long`` of Java holds; ``None`` when it is not set, or none."""
        return self._number(key, _INTEGER, "an integer")

    def size(self, key: str) -> int | None:
        """Bytes, as Hadoop's configuration has them: a number that may end in one of K, M, G, T, P, E."""
        return self._number(key, _SIZE, "a number of bytes")

    def flag(self, key: str) -> bool | None:
        """``true`` or ``false`` in any case; ``None`` when it is not set, or neither."""
        text = self.text(key)
        if text is None:
            return None
        found = _FLAGS.get(text.lower())
        if found is None:
            _warn_once(key, text[:_SHOWN_CHARS_MAX], "true or false")
        return found

    def names(self, key: str) -> list[str]:
        """A list separated by commas, in lower case, without what is empty."""
        parts = (part.strip().lower() for part in (self.text(key) or "").split(","))
        return [part for part in parts if part]

    def _number(self, key: str, form: re.Pattern[str], wanted: str) -> int | None:
        text = self.text(key)
        if text is None:
            return None
        match = form.fullmatch(text)
        number = 0 if match is None else int(match[1]) << _SHIFT[match[2].lower()]
        if match is None or not -OFFSET_MAX - 1 <= number <= OFFSET_MAX:
            _warn_once(key, text[:_SHOWN_CHARS_MAX], wanted)
            return None
        return number


def note_once(message: str, name: str) -> None:
    """Log at DEBUG what was passed over because nobody knows it; the same once in the life of the process."""
    if logger.isEnabledFor(logging.DEBUG):
        _note_once(message, name[:_SHOWN_CHARS_MAX])


@lru_cache(maxsize=256)
def _note_once(message: str, name: str) -> None:
    logger.debug(message, name)


@lru_cache(maxsize=256)
def _warn_once(key: str, text: str, wanted: str) -> None:
    # A job that opens a million files under one configuration tells it once, not a million times.
    logger.warning("open_file: %s=%r is not %s and counts as unset", key, text, wanted)
