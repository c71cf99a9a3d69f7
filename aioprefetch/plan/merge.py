"""Two listings in the order of their keys, side by side: the keys of one find the items of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Merge(Generic[T]):
    """The items of a listing, each put before it is asked for. ``on_passed`` gets items without a key."""

    def __init__(self, key_of: Callable[[T], str], on_passed: Callable[[T], object]) -> None:
        self._key_of = key_of
        self._on_passed = on_passed
        self._item: T | None = None
        self._is_found = False
        self.is_at_end = False

    def is_before(self, key: str) -> bool:
        """Whether the next item has to be put before ``find`` can tell whether there is one of that key."""
        return not self.is_at_end and (self._item is None or self._key_of(self._item) < key)

    def put(self, item: T | None) -> None:
        """Go on to the next item, or with ``None`` beyond the last one."""
        if self._item is not None and not self._is_found:
            self._on_passed(self._item)
        self._item, self._is_found, self.is_at_end = item, False, item is None

    def find(self, key: str) -> T | None:
        """The item of a key, or ``None``."""
        if self._item is None or self._key_of(self._item) != key:
            return None
        self._is_found = True
        return self._item
