"""Locks at a fork: a child has one thread of its parent, and a lock that another thread held stays locked there.

A lock of what a child goes on using is made by ``free_in_child``. A runtime and all its parts stay with the parent, and
theirs need nothing.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

L = TypeVar("L")

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - the standard library's word
        """``functools.cached_property`` without the lock that it has in Python 3.11, one for all objects of a class."""

        def __init__(self, make):
            self._make = make
            self.__doc__ = make.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            made = instance.__dict__[self._name] = self._make(instance)
            return made


_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def free_in_child(lock: L) -> L:
    """The lock given, a ``threading.Lock`` or ``RLock``: in a forked child no other thread of the parent holds it."""
    _locks.add(lock)
    return lock


def _free() -> None:
    for lock in tuple(_locks):
        # What the thread that forks holds it releases itself.
        if not getattr(lock, "_is_owned", bool)():
            lock._at_fork_reinit()


if not hasattr(os, "register_at_fork"):  # It is missing on Windows, and this is the first place that needs it.
    raise ImportError(
        "aioprefetch runs on Linux and macOS, and on Windows within WSL 2: os.register_at_fork is missing"
    )
os.register_at_fork(after_in_child=_free)
